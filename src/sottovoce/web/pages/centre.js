// The consent centre as a page of its own, on an agent's loopback API.

import { consent } from "./consent.js";
import { loopback, token } from "./loopback.js";

const root = document.querySelector("#page");
if (root instanceof HTMLElement) await consent(root, loopback(token()));
