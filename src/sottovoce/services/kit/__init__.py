"""What every service is made of: connections, answers, documents, a writer, a process."""
