"""An artifact behind OpenAI's HTTP interface, for trying it from an app.

=============  ==========================================================================================
``requests``   what a client asks for, read from JSON and refused by name
``replies``    what it is answered, in OpenAI's shapes
``worker``     the one thread that MLX works in
``streams``    tokens from that thread, as text for those who wait for it
``app``        the routes
``server``     listens, and ends in good order
=============  ==========================================================================================
"""
