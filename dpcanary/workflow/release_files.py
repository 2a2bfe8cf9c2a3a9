"""The files of a release, for the rule that unpacks it."""

from pathlib import Path

from dpcanary.core.provenance import Job, listed
from dpcanary.experiment.products import Products


class ReleaseRules:
    """What an archive holds, which is what the experiment needs.

    Attributes:
        archive: its path.
        files: paths of all that is unpacked.
        job: what the archive must hold, for the program.
    """

    def __init__(self, results: str, products: Products, archive: Path) -> None:
        """Takes the folder of an experiment's results, its products, and the archive.

        Raises:
            InputError: if the archive is damaged, or of another experiment.
        """
        origins = products.check_release(archive)
        self.archive = str(archive)
        self.files = [f"{results}/{name}" for name in origins]
        self.job = Job(inputs={"archive": listed([*origins.values()])})
