"""The engine: epochs as steps on the workers, asynchronous or synchronous."""
