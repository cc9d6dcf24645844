"""The web app (extra ``app``): one model, one page, and a small JSON interface between them.

1. The page (``page/``) sends what is asked as JSON; ``question.py`` checks it.
2. ``queue.py`` lets one question after the other be answered, first come, first served.
3. ``desk.py`` answers with the model, and remembers the last explanations; ``drawing.py`` gives the page what to draw,
   ``downloads.py`` files, ``samples.py`` sentences of a benchmark.
4. ``server.py`` is the HTTP side, ``guard.py`` what keeps other sites out.

The state of the page is its address; the server has none but the explanations it remembers.
"""
