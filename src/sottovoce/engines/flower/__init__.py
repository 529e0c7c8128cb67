"""Flower as the engine for organisations whose gateway hosts a cohort. Nothing else imports Flower.

A *node* is a gateway: it holds the devices of its people in one store, answers for them, and sends
the sum of their reports. The *conductor* is the server's side: it asks nodes, closes rounds by the
federation's rules and keeps its own checkpoint. Flower carries the messages between them.
"""
