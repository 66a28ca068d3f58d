"""What the recipe of a job says of its publications: where they are, and of what; tried again while a store is down."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ett.checkpoint.progress import Watch
from ett.checkpoint.publish import Published, publish_newest_whole
from ett.checkpoint.publish_config import PublishConfig
from ett.checkpoint.publish_settings import Pruning, PublishSettings
from ett.checkpoint.random_wait import random_wait
from ett.checkpoint.store import Store, open_store
from ett.checkpoint.target import job_store, seen_from_launch
from ett.errors import ConfigError, Unreachable
from ett.publisher import publish_section
from ett.section import build_section

log = logging.getLogger(__name__)
FIRST_WAIT_S, LONGEST_WAIT_S = 10.0, 300.0


@dataclass(frozen=True, slots=True)
class PublishedJob:
    job_dir: Path
    config: PublishConfig

    @classmethod
    def of(cls, job_dir: Path) -> PublishedJob:
        """Raises: ConfigError: the job's recipe does not say where it is published, or is damaged."""
        config: PublishConfig = build_section(PublishConfig, publish_section(job_dir / "recipe.json"), "publish")
        if not config.to:
            raise ConfigError(
                f"the recipe of job {job_dir.name} has no publish.to",
                do=f"`ett publish {job_dir.name} --to DIR|URL`, or set it in the recipe",
            )
        return cls(job_dir, config)

    @property
    def settings(self) -> PublishSettings:
        return PublishSettings(
            tables=self.config.tables,
            bits=self.config.quantise,
            pruning=Pruning(min_updates=self.config.min_updates, max_age_updates=self.config.max_age),
        )

    def open(self) -> Store:
        """Return the store of its publications."""
        return open_store(seen_from_launch(self.job_dir, self.config.to), "publish.to")

    def publish(self, watch: Watch, sleep: Callable[[float], None] = time.sleep) -> Published:
        """Publish the newest commit that verifies. Raises: as `publish_newest_whole`, after all attempts."""
        from tenacity import Retrying, before_sleep_log, retry_if_exception_type, stop_after_attempt

        attempts = Retrying(
            retry=retry_if_exception_type(Unreachable),
            stop=stop_after_attempt(self.config.attempts),
            wait=random_wait(FIRST_WAIT_S, LONGEST_WAIT_S),
            before_sleep=before_sleep_log(log, logging.WARNING),
            sleep=sleep,
            reraise=True,
        )
        return attempts(self._publish, watch)

    def _publish(self, watch: Watch) -> Published:
        store = job_store(self.job_dir)
        return publish_newest_whole(store, self.open(), self.settings, delta=self.config.delta, watch=watch)
