"""HTTP: thin routes that decode, call one service, and encode.

extender          /filter, /prioritize, /preempt and /explain
state             /state, and what /readyz answers
extender_codec    kube-scheduler's messages, decoded and encoded
raw_nodes         full nodes in a request's body, located and sent back as bytes
body              reads a request's body, up to the limit
openapi           OpenAPI descriptions of kube-scheduler's messages
errors            errors as JSON answers
dependencies      what the routes need
"""
