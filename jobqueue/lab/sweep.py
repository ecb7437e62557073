"""Many simulations at once, each in a database of its own, on any executor of concurrent.futures."""


def sweep(grid, *, executor=None):
    raise NotImplementedError
