"""`vitcap serve`: a local web page that captions photos and shows where the model looked, and the same for programs.

Needs the extra `demo`. Nothing of an upload is kept; see SECURITY.md for what is promised.
"""
