"""HTTP: thin routes that decode, call one service, and encode.

extender          /filter, /prioritize, /preempt and /explain; /state and /decisions; what /readyz answers
extender_codec    kube-scheduler's messages, decoded and encoded; full nodes are located, and sent back as bytes
errors            errors as JSON answers, and OpenAPI descriptions of kube-scheduler's messages
app_state         what the routes share: the application's parts, its latest decisions and callers
request_body      reads a request's body, up to the limit
placement_review  the placement guard's reviews
page              pages for people
"""
