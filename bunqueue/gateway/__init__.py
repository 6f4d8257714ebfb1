"""The HTTP gateway: REST, live events, webhooks and the dashboard, as a client of the router."""
