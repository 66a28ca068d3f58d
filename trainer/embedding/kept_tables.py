"""A rank's tables from one generation of an attempt to the next: a restore reads only what has changed in them."""

from __future__ import annotations

from collections.abc import Mapping

from ett.checkpoint.kept_rows import has_rows_of_a_commit
from ett.trainer.embedding.job_tables import JobTables
from ett.trainer.sparse.embedding_shard import EmbeddingShard
from ett.trainer.sparse.tiers.tiers import RankPlace


class KeptTables:
    """What a generation leaves, for one other to take: it may fail in turn before its tables are those of a commit."""

    def __init__(self) -> None:
        self._shards: dict[str, EmbeddingShard] = {}
        self._taken: dict[str, EmbeddingShard] = {}
        self._place: RankPlace | None = None

    def keep(self, tables: JobTables, place: RankPlace) -> None:
        """Keep the tables of which it is known what has changed since a commit; nobody touches them any more."""
        shards = [shard for shard in tables.shards() if has_rows_of_a_commit(shard)]
        for shard in shards:
            shard.leave_batches()
        self._shards = {shard.name.partition(".")[2]: shard for shard in shards}
        self._place = place

    def take(self, place: RankPlace) -> Mapping[str, EmbeddingShard]:
        """Return the tables by their names in the recipe: none for a rank that has other rows in this generation."""
        kept, self._shards = self._shards, {}
        self._taken = kept if place == self._place else {}
        return self._taken

    def forget(self) -> None:
        """Empty the tables that were taken, and what they have seen of ids: the generation has no commit to restore."""
        for shard in self._taken.values():
            shard.begin_import(0)
            shard.end_import()
            if shard.sightings is not None:
                shard.sightings.begin_import(0)
