"""Leadership: which process answers kube-scheduler, and how the Service reaches it. Both modules are pure:
`app/runtime/elector.py` and `app/extender/endpoint_publisher.py` make the calls.

election        leader election on a Lease, as a state machine
endpoint_slice  the Service's EndpointSlice: its desired content, and the change that leads to it
"""
