"""The recipe sections of the trainer (but [data], in data/config.py); importable without torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ett.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Bottom MLP over the dense features, one embedding a category, vectors crossed (or attended to), top MLP."""

    # Dot products of all pairs of vectors, low-rank crosses, or attention over a history (trainer/dense/hstu.py).
    kind: Literal["dlrm", "dcn_v2", "hstu"] = "dlrm"
    embedding_dim: int = 16  # elements of an embedding row; also the width of the bottom MLP's output
    bottom_mlp: tuple[int, ...] = (64, 32)  # hidden widths; the output layer to embedding_dim is added
    top_mlp: tuple[int, ...] = (64, 32)  # hidden widths; the output layer to one logit is added
    cross_layers: int = 3  # dcn_v2 only
    cross_rank: int = 64  # dcn_v2 only: columns of each cross's low-rank weight
    history: str = "history"  # hstu only: the feature with a user's ids, the latest last
    item: str = "item_id"  # hstu only: the feature with the id to score; both from tables with pooling "none"
    attention_layers: int = 2  # hstu only
    attention_heads: int = 2  # hstu only
    attention_dim: int = 16  # hstu only: elements of a head
    attention_window: int = 256  # hstu only: ids that one sees in a layer, itself included
    dropout: float = 0.0  # share of the top MLP's hidden activations zeroed in training, 0 <= p < 1

    def __post_init__(self) -> None:
        _at_least("model.embedding_dim", self.embedding_dim, 1)
        attention = ("attention_layers", "attention_heads", "attention_dim", "attention_window")
        for name in ("cross_layers", "cross_rank", *attention):
            _at_least(f"model.{name}", getattr(self, name), 1)
        for name in ("bottom_mlp", "top_mlp"):
            for width in getattr(self, name):
                _at_least(f"model.{name}", width, 1)
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"model.dropout is {self.dropout}", expected="a share, 0 <= p < 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableConfig:
    """What one table has for itself; 0 and "" stand for what [sparse] and [model] say."""

    features: tuple[str, ...] = ()  # columns whose ids are rows of this table; empty: the one of the table's name
    num_embeddings: int = 0  # ids are in [0, num_embeddings); 0: any int64, and the table grows
    embedding_dim: int = 0  # elements of a row
    pooling: Literal["sum", "mean", "none"] = "sum"  # of an example's rows; mean: by their number; none: one by one
    optimizer: Literal["", "sgd", "adagrad", "rowwise_adagrad", "adam"] = ""
    learning_rate: float = 0.0
    max_rows: int = 0  # on one rank

    def __post_init__(self) -> None:
        for name in ("num_embeddings", "embedding_dim", "max_rows"):
            _at_least(name, getattr(self, name), 0)
        if not 0.0 <= self.learning_rate < float("inf"):
            raise ConfigError(f"learning_rate is {self.learning_rate}", expected="a finite number, zero or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseConfig:
    """Every table's optimizer; all are exact: duplicates of an id are summed first, then one update."""

    optimizer: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = "rowwise_adagrad"
    learning_rate: float = 0.05  # times the schedule's factor of [optimizer]
    eps: float = 1e-8  # added to the root of the second moment
    beta1: float = 0.9  # adam only
    beta2: float = 0.999  # adam only
    init_scale: float = 0.01  # rows start uniform in [-init_scale, init_scale), by id
    # Where a rank's rows lie (docs/core.md, "Where rows lie"); of no influence on any bit.
    tier: Literal["host", "ssd", "redis"] = "host"  # all in memory, or below a cache of each table
    cache_rows: int = 0  # ssd, redis: rows of one table and rank whose weights are in memory
    state_cache_rows: int = 0  # likewise for optimizer state, which only updates need; 0: cache_rows
    tier_dir: str = ""  # ssd: a folder on a local disk; empty: in the job's folder
    redis_url: str = ""  # redis: redis://HOST:PORT/DB; the server must not evict (maxmemory-policy noeviction)
    redis_timeout_s: float = 5.0  # of connecting and of each reply
    redis_attempts: int = 4  # of one round trip, the first included
    # Which ids become rows and which rows go; part of the model.
    admit_after: int = 1  # batches with an id until it becomes a row; before, it has its initial value
    max_rows: int = 0  # of one table on one rank; 0: no bound
    when_full: Literal["error", "lru", "lfu"] = "error"  # which rows give way to new ones
    ttl_updates: int = 0  # a row that so many updates of its table left alone goes; 0: never
    tables: dict[str, TableConfig] = field(default_factory=dict)  # [sparse.tables.NAME]: what differs, table by table

    def __post_init__(self) -> None:
        self._check_tier()
        for name in ("max_rows", "ttl_updates"):
            _at_least(f"sparse.{name}", getattr(self, name), 0)
        _at_least("sparse.admit_after", self.admit_after, 1)
        if self.when_full != "error" and not (self.max_rows or any(own.max_rows for own in self.tables.values())):
            raise ConfigError(
                f"sparse.when_full is {self.when_full!r} and no table has a bound",
                expected="sparse.max_rows, or max_rows of a table, above 0",
            )
        _above_zero("sparse.learning_rate", self.learning_rate)
        _above_zero("sparse.eps", self.eps)
        _check_betas("sparse", self.beta1, self.beta2)
        if not self.init_scale >= 0.0:
            raise ConfigError(f"sparse.init_scale is {self.init_scale}", expected="zero or more")

    def of_table(self, name: str) -> SparseConfig:
        """Return the settings of one table: its own where it has some."""
        own = self.tables.get(name, TableConfig())
        return replace(
            self,
            optimizer=own.optimizer or self.optimizer,
            learning_rate=own.learning_rate or self.learning_rate,
            max_rows=own.max_rows or self.max_rows,
            tables={},
        )

    def _check_tier(self) -> None:
        _at_least("sparse.redis_attempts", self.redis_attempts, 1)
        _above_zero("sparse.redis_timeout_s", self.redis_timeout_s)
        is_cached = self.tier != "host"
        for name in ("cache_rows", "state_cache_rows"):
            rows = getattr(self, name)
            _at_least(f"sparse.{name}", rows, 1 if is_cached and name == "cache_rows" else 0)
            if rows and not is_cached:
                raise ConfigError(
                    f"sparse.{name} is {rows} and sparse.tier is 'host', which keeps every row in memory",
                    expected="a tier below the cache: ssd or redis",
                )
        for name, tier in (("tier_dir", "ssd"), ("redis_url", "redis")):
            if getattr(self, name) and self.tier != tier:
                raise ConfigError(
                    f"sparse.{name} is set and sparse.tier is {self.tier!r}", expected=f"sparse.tier = {tier!r}"
                )
        if self.tier == "redis" and not self.redis_url:
            raise ConfigError("sparse.tier is 'redis' and sparse.redis_url is empty", do="redis://HOST:PORT/DB")


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseConfig:
    bucket_bytes: int = 65536  # buckets, ddp: largest gradient bucket; several let sums start while others are filled
    # Torch threads of a rank. More than one pays only with wide layers on idle cores: on two busy cores the example
    # trained 20,000 samples/s with one thread and 2,500 with two, whose barriers wait for a core.
    threads: int = 1
    # How gradients are summed over ranks: in buckets of ours, by DistributedDataParallel, or with the parameters and
    # their optimizer state sharded (fully_shard). docs/core.md says where they differ.
    parallel: Literal["buckets", "ddp", "fsdp"] = "buckets"
    device: Literal["cpu", "cuda", "auto"] = "cpu"  # where it computes; auto: a GPU where there is one
    precision: Literal["float32", "bfloat16"] = "float32"  # of the computing; weights, sums and states are float32

    def __post_init__(self) -> None:
        _at_least("dense.bucket_bytes", self.bucket_bytes, 4)
        _at_least("dense.threads", self.threads, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Adam for the dense part, and the schedule that scales the learning rates of both parts."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    schedule: Literal["constant", "cosine"] = "constant"  # cosine falls to min_factor over decay_steps
    warmup_steps: int = 0  # factor rises linearly from 1/warmup_steps to 1
    decay_steps: int = 0  # cosine only: steps after the warm-up until min_factor is reached
    min_factor: float = 0.1  # cosine only: the factor at the end and after it

    def __post_init__(self) -> None:
        _above_zero("optimizer.learning_rate", self.learning_rate)
        _above_zero("optimizer.eps", self.eps)
        _check_betas("optimizer", self.beta1, self.beta2)
        _at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        _at_least("optimizer.decay_steps", self.decay_steps, 1 if self.schedule == "cosine" else 0)
        if not 0.0 <= self.min_factor <= 1.0:
            raise ConfigError(f"optimizer.min_factor is {self.min_factor}", expected="a share, 0 to 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    batch_size: int = 1024  # global: samples of all ranks in one step
    accumulate: int = 1  # forward and backward passes that a step's samples are divided over, to need less memory
    epochs: int = 1  # passes over the training rows
    max_steps: int = 0  # stop after this many steps in all; 0 = when the epochs are over
    seed: int = 1  # initial weights, dropout and shuffling follow from it
    freeze_embeddings: bool = False  # keep every embedding row at its initial value
    prefetch_depth: int = 1  # batches whose rows are on their way while one trains; of no influence on any bit
    trace_batches: int = 0  # write which stage of the first batches ran when to stages-rank<k>.json; 0: do not
    comm_timeout_s: float = 300.0  # longest wait for another rank in a collective

    def __post_init__(self) -> None:
        _at_least("train.batch_size", self.batch_size, 1)
        _at_least("train.accumulate", self.accumulate, 1)
        _at_least("train.epochs", self.epochs, 1)
        for name in ("max_steps", "prefetch_depth", "trace_batches"):
            _at_least(f"train.{name}", getattr(self, name), 0)
        _above_zero("train.comm_timeout_s", self.comm_timeout_s)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"train.seed is {self.seed}", expected="an integer, 0 <= seed < 2^63")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    enabled: bool = True  # score the held-out rows at the end
    every_steps: int = 0  # and every so many steps in between; 0 = only at the end
    batch_size: int = 4096  # global: held-out samples of all ranks scored at once
    max_rows: int = 0  # stop with the batch in which so many held-out rows are scored; 0 = score all

    def __post_init__(self) -> None:
        _at_least("eval.batch_size", self.batch_size, 1)
        _at_least("eval.max_rows", self.max_rows, 0)
        _at_least("eval.every_steps", self.every_steps, 0)
        if self.every_steps and not self.enabled:
            raise ConfigError(
                f"eval.every_steps is {self.every_steps} and eval.enabled is false", expected="one or the other"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """The trainer's sections of one recipe."""

    model: ModelConfig = field(default_factory=ModelConfig)
    sparse: SparseConfig = field(default_factory=SparseConfig)
    dense: DenseConfig = field(default_factory=DenseConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} is {value}", expected=f"at least {least}")


def _above_zero(name: str, value: float) -> None:
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{name} is {value}", expected="a finite number above zero")


def _check_betas(section: str, beta1: float, beta2: float) -> None:
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0.0 <= beta < 1.0:
            raise ConfigError(f"{section}.{name} is {beta}", expected="a number, 0 <= beta < 1")
