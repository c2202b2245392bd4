"""Treebanks: the one that comes with the package, and public ones fetched with a checksum.

>>> from attnprobe import data
>>> data.treebank("ud-ewt").licence
'CC BY-SA 4.0'
"""

from attnprobe.data.catalogue import BUNDLED, Treebank, available, treebank
from attnprobe.data.fetching import cache_folder, fetch, path

__all__ = ["BUNDLED", "Treebank", "available", "cache_folder", "fetch", "path", "treebank"]
