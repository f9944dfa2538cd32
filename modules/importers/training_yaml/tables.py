"""The settings of training scripts and what becomes of them; other names of each are in `renamed`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from modules.importers import common
from modules.importers.optimizers import OF_TORCH
from modules.importers.readers import boolean, integer, number, optional_number, output_path, positive_number
from modules.importers.rules import CombinedRule, Rule, Table, Unsupported
from modules.importers.training_yaml import values

_LAUNCH = "Tandem starts its processes itself, and tells each which one it is"
_TEST = "a concept of the kind test is measured at the end, on the weights that are saved"
_ALL = "every image is measured, in the order of the folder"
_CODE = "the model family decides; write a family of your own for another one (docs/custom_models.md)"
_AUGMENT = (
    "set horizontal_flip, color_jitter and random_rotate of the concept, and family_options such as crop_padding and "
    "rand_augment"
)

# The table's name -> other names; a dot separates the section.
_OTHER_NAMES: Mapping[str, Iterable[str]] = {
    "model.name": ("model", "model.type", "model.architecture", "model.arch", "model.backbone", "model.file"),
    "data.train_dir": (
        "data.train_path", "data.train_root", "data.root", "data.path", "data.dir", "data.data_dir", "data.data_path",
        "data.train", "data.train.path", "data.train.root",
    ),
    "data.val_dir": (
        "data.val_path", "data.val_root", "data.valid_dir", "data.validation_dir", "data.val", "data.val.path",
        "data.val.root", "validation.path", "validation.dir",
    ),
    "data.test_dir": ("data.test_path", "data.test_root", "data.test", "data.test.path", "testing.path", "testing.dir"),
    "data.batch_size": (
        "batch_size", "training.batch_size", "data.train_batch_size", "training.train_batch_size",
        "data.batch_size_per_gpu", "training.batch_size_per_gpu", "data.train.batch_size",
    ),
    "validation.batch_size": ("data.val_batch_size", "data.val.batch_size", "data.validation.batch_size"),
    "testing.batch_size": ("data.test_batch_size", "data.test.batch_size"),
    "data.num_workers": ("num_workers", "data.workers", "training.num_workers", "data.n_workers",
                         "data.train.num_workers"),
    "validation.num_workers": ("data.val.num_workers", "data.validation.num_workers"),
    "testing.num_workers": ("data.test.num_workers",),
    **{f"data.{name}": (name, f"training.{name}", f"data.train.{name}") for name in values.LOADER},
    **{f"validation.{name}": (f"data.val.{name}", f"data.validation.{name}") for name in values.LOADER},
    **{f"testing.{name}": (f"data.test.{name}",) for name in values.LOADER},
    "data.image_size": ("data.img_size", "data.input_size", "data.resolution", "data.size", "data.crop_size",
                        "model.image_size", "model.input_size"),
    "data.validation_split": ("data.val_split", "data.valid_split", "data.val_ratio", "validation.split"),
    "data.horizontal_flip": ("data.random_flip", "data.hflip", "data.augmentation.horizontal_flip",
                             "data.augmentation.random_horizontal_flip"),
    "data.mixup": ("data.mixup_alpha", "training.mixup", "training.mixup_alpha"),
    "data.cutmix": ("data.cutmix_alpha", "training.cutmix", "training.cutmix_alpha"),
    "data.random_erasing": ("data.augmentation.random_erasing",),
    "training.label_smoothing": ("label_smoothing", "loss.label_smoothing", "data.label_smoothing"),
    "training.epochs": ("epochs", "training.num_epochs", "training.max_epochs", "training.n_epochs"),
    "training.max_steps": ("training.max_iterations", "training.iterations", "training.num_steps",
                           "training.total_steps"),
    "training.learning_rate": ("learning_rate", "lr", "training.lr", "training.base_lr", "optimizer.lr",
                               "optimizer.learning_rate"),
    "training.optimizer": ("optimizer", "optimizer.name", "optimizer.type", "training.optimizer_type",
                           "training.optim", "training.optim_type", "training.optimizer_name"),
    "training.optimizer_args": ("optimizer.args",),
    **{f"optimizer.{name}": (f"training.{name}",) for name in OF_TORCH},
    "training.scheduler": ("scheduler", "training.lr_scheduler", "scheduler.name", "scheduler.type",
                           "training.scheduler_type", "training.lr_scheduler_type", "training.scheduler_name"),
    **{f"scheduler.{name}": (f"training.{name}", f"training.lr_{name}")
       for name in ("step_size", "gamma", "milestones")},
    "training.warmup_steps": ("scheduler.warmup_steps",),
    "training.warmup_epochs": ("scheduler.warmup_epochs",),
    "training.min_lr": ("scheduler.min_lr", "scheduler.eta_min"),
    "training.use_amp": (
        "use_amp", "training.fp16",
        *(f"{group}{name}" for group in ("", "training.", "parallel.") for name in (
            "amp", "amp.enabled", "mixed_precision", "mixed_precision.enabled")),
    ),
    "training.precision": (
        "precision", "training.amp_dtype", "training.dtype",
        *(f"{group}{name}.dtype" for group in ("", "training.", "parallel.") for name in ("amp", "mixed_precision")),
    ),
    "training.gradient_checkpointing": tuple(
        f"{group}{name}" for group in ("", "training.", "model.") for name in (
            "gradient_checkpointing", "enable_gradient_checkpointing", "use_gradient_checkpointing",
            "grad_checkpointing", "activation_checkpointing")
        if f"{group}{name}" != "training.gradient_checkpointing"
    ),
    "training.compile": ("compile", "training.torch_compile", "training.use_compile", "model.compile"),
    "training.gradient_clip": (
        "training.grad_clip", "training.clip_grad", "training.clip_grad_norm", "training.max_grad_norm",
        "training.gradient_clip_val", "training.grad_clip_norm", "training.gradient_clipping",
        "training.gradient_clip_norm",
    ),
    "training.accumulation": (
        "training.accumulation_steps", "training.gradient_accumulation", "training.gradient_accumulation_steps",
        "training.grad_accumulation", "training.accumulate_grad_batches", "training.grad_accum_steps",
    ),
    "training.use_ema": ("use_ema", "ema", "ema.enabled", "training.ema", "training.ema.enabled", "model.ema",
                         "model.use_ema"),
    "training.ema_decay": ("ema.decay", "ema_decay", "training.ema.decay", "model.ema_decay"),
    "seed": ("seed_everything", "training.seed", "experiment.seed", "data.seed"),
    "device": ("training.device", "training.accelerator", "experiment.device", "parallel.device"),
    "parallel.mode": ("parallel.strategy", "parallel.type", "parallel", "training.strategy"),
    "parallel.enabled": ("parallel.enable", "parallel.use_ddp", "training.distributed", "training.use_ddp"),
    "parallel.world_size": ("parallel.num_gpus", "parallel.n_gpu", "parallel.nproc_per_node", "world_size",
                            "training.world_size", "training.devices", "n_gpu", "num_gpus"),
    "parallel.backend": ("parallel.dist_backend", "dist_backend"),
    "parallel.sync_batchnorm": ("parallel.sync_bn", "parallel.sync_batch_norm", "training.sync_bn",
                                "training.sync_batchnorm", "model.sync_bn"),
    "parallel.gpus": ("parallel.device_ids", "parallel.gpu_ids", "gpu_ids"),
    "parallel.num_nodes": ("parallel.nnodes", "training.num_nodes"),
    "parallel.master_port": ("parallel.port",),
    "validation.every": (
        "validation.interval", "validation.every_n_epochs", "validation.frequency", "validation.val_interval",
        "validation.eval_every", "validation.eval_interval", "training.val_interval", "training.eval_every",
        "training.eval_interval", "training.val_every", "training.validate_every", "training.check_val_every_n_epoch",
    ),
    "early_stopping.enabled": ("early_stopping", "early_stopping.enable", "early_stopping.use"),
    "early_stopping.patience": ("training.patience", "training.early_stopping_patience"),
    "early_stopping.metric": ("early_stopping.monitor", "training.monitor"),
    "early_stopping.min_delta": ("early_stopping.delta", "early_stopping.threshold"),
    "early_stopping.restore_best": ("early_stopping.restore_best_weights",),
    "checkpoint.dir": ("checkpoint.save_dir", "checkpoint.path", "checkpoint.output_dir", "checkpoint.dirpath",
                       "output_dir", "save_dir", "training.save_dir", "training.output_dir",
                       "training.default_root_dir", "training.path", "training.output_path",
                       "experiment.output_dir",
                       "experiment.save_dir"),
    "checkpoint.save_every": (
        "checkpoint.interval", "checkpoint.save_interval", "checkpoint.every_n_epochs", "checkpoint.save_freq",
        "checkpoint.frequency", "training.checkpoint_at", "training.checkpoint_every", "training.save_every",
        "training.save_period", "training.save_interval",
    ),
    "checkpoint.save_every_steps": ("checkpoint.every_n_steps", "checkpoint.every_n_train_steps",
                                    "checkpoint.save_steps"),
    **{f"checkpoint.{name}": (name, f"training.{name}") for name in (
        "save_best", "save_last", "save_best_only", "save_top_k")},
    "checkpoint.keep": ("checkpoint.keep_last", "checkpoint.keep_last_n", "checkpoint.max_to_keep",
                        "checkpoint.max_keep", "checkpoint.keep_n"),
    "logging.tensorboard": ("logging.use_tensorboard", "training.tensorboard"),
    "logging.log_every": ("logging.interval", "logging.log_interval", "logging.every_n_steps", "logging.print_freq",
                          "logging.log_freq", "logging.print_every", "training.log_interval", "training.log_every",
                          "training.print_freq", "training.log_every_n_steps"),
    "experiment.name": ("name", "experiment_name", "run_name", "experiment", "experiment.run_name", "logging.name",
                        "logging.experiment_name", "logging.run_name"),
}  # fmt: skip

TABLE = Table(
    rules=(
        CombinedRule(
            {"model.name": None, "model.pretrained": None}, "family, family_options.network, family_options.pretrained",
            values.model, "a name is a classifier's network: cifar_resnet20 to 110, or one of timm; a .py file is a "
            "family of your own",
        ),
        CombinedRule(
            {**dict.fromkeys(values.FOLDERS), "data.horizontal_flip": None}, "concepts", values.folders,
            "each folder is a concept, with one folder of images for each class; CIFAR archives are read, too",
        ),
        CombinedRule(
            {"training.epochs": None, "training.max_steps": None}, "epochs, max_steps", values.length
        ),
        CombinedRule(values.OPTIMIZER_KEYS, "optimizer", values.optimizer, common.PLAIN_OPTIMIZER),
        CombinedRule(
            {"training.warmup_steps": None, "training.warmup_epochs": None}, "warmup_steps, warmup_fraction",
            values.warmup, uses={"training.epochs": None},
        ),
        CombinedRule(
            values.SCHEDULER_KEYS,
            "scheduler, scheduler_target, scheduler_arguments, scheduler_interval, min_learning_rate_factor",
            values.schedule, "a class of torch with its arguments, stepped after each epoch",
            uses={"training.learning_rate": None},
        ),
        CombinedRule(
            {"training.use_amp": None, "training.precision": None}, "precision", values.precision,
            "fp16 unless the file names a type, as torch's autocast on GPUs",
        ),
        CombinedRule(
            {"parallel.mode": None, "parallel.enabled": None, "parallel.world_size": None},
            "enable_multi_gpu, training_mode, world_size", values.parallel,
        ),
        CombinedRule(
            dict.fromkeys(values.STOPPING),
            "early_stopping_patience, early_stopping_metric, early_stopping_mode, early_stopping_min_delta",
            values.early_stopping,
        ),
        Rule("early_stopping.restore_best", "restore_best", None, boolean, optional=True),
        Rule("data.batch_size", "batch_size", None, integer, optional=True),
        Rule("data.num_workers", "loader_workers", None, integer, optional=True),
        Rule("data.pin_memory", "pin_memory", None, boolean, optional=True),
        Rule("data.persistent_workers", "persistent_workers", None, boolean, optional=True),
        Rule("data.prefetch_factor", "prefetch_factor", None, integer, optional=True),
        Rule("data.drop_last", "drop_last", None, boolean, optional=True),
        Rule("data.image_size", "resolution", None, values.image_size, optional=True),
        Rule("data.validation_split", "validation_split", None, number, optional=True),
        Rule("data.mixup", "family_options.mixup", None, number, optional=True),
        Rule("data.cutmix", "family_options.cutmix", None, number, optional=True),
        Rule("data.random_erasing", "family_options.random_erasing", None, number, optional=True),
        Rule("data.crop_padding", "family_options.crop_padding", None, integer, optional=True),
        Rule("training.label_smoothing", "family_options.label_smoothing", None, number, optional=True),
        Rule("training.learning_rate", "learning_rate", None, positive_number, optional=True),
        Rule("training.gradient_clip", "max_grad_norm", None, optional_number),
        Rule("training.accumulation", "gradient_accumulation_steps", None, integer, optional=True),
        Rule("training.use_ema", "ema", None, boolean, optional=True),
        Rule("training.ema_decay", "ema_decay", None, number, optional=True),
        Rule("training.gradient_checkpointing", "gradient_checkpointing", None, boolean, optional=True),
        Rule("training.compile", "compile", None, boolean, optional=True),
        Rule("training.channels_last", "channels_last", None, boolean, optional=True),
        Rule("seed", "seed", None, integer, optional=True),
        Rule("device", "device", None, values.device, optional=True),
        Rule("parallel.backend", "distributed_backend", None, values.backend, optional=True),
        Rule("parallel.find_unused_parameters", "find_unused_parameters", None, boolean, optional=True),
        Rule("parallel.sync_batchnorm", "sync_batch_norm", None, boolean, optional=True),
        Rule("parallel.broadcast_buffers", "broadcast_buffers", None, boolean, optional=True),
        Rule("parallel.bucket_cap_mb", "bucket_cap_mb", None, integer, optional=True),
        Rule("parallel.gradient_as_bucket_view", "gradient_as_bucket_view", None, boolean, optional=True),
        Rule("parallel.static_graph", "static_graph", None, boolean, optional=True),
        Rule("parallel.gpus", "device_ids", None, values.gpus, optional=True),
        Rule("parallel.num_nodes", "num_nodes", None, integer, optional=True),
        Rule("parallel.node_rank", "node_rank", None, integer, optional=True),
        Rule("parallel.master_addr", "master_addr", None, str, optional=True),
        Rule("parallel.master_port", "initial_port", None, integer, optional=True),
        Rule("validation.batch_size", "validation_batch_size", None, integer, optional=True),
        Rule("validation.num_workers", "validation_workers", None, integer, optional=True),
        common.interval("validate_every", {"validation.every": "epochs", "validation.every_steps": "steps"}),
        common.interval(
            "backup_every", {"checkpoint.save_every": "epochs", "checkpoint.save_every_steps": "steps"}
        ),
        Rule("checkpoint.dir", "runs_dir", None, output_path, optional=True),
        Rule("checkpoint.keep", "backups_kept", None, integer, optional=True),
        common.interval("log_every", {"logging.log_every": "steps"}),
        Rule("logging.tensorboard", "tensorboard", None, boolean, optional=True),
        Rule("experiment.name", "run_name", None, values.run_name, optional=True),
    ),
    unsupported=(
        Unsupported("defaults defaults.*", "the file is made of others, which are not read: give the composed one"),
        Unsupported("data.shuffle", "Tandem shuffles every epoch, from the seed", default=True),
        Unsupported(
            "data.name data.dataset data.type data.class_path data._target_",
            "give the folder or the archive: set concepts",
        ),
        Unsupported(
            "data.augmentation data.augmentation.* data.augment data.transforms data.transforms.* data.*.transforms "
            "data.*.transforms.* data.*.augmentation data.*.augmentation.*", _AUGMENT,
        ),
        Unsupported("data.mean data.std data.normalize data.normalization*", _CODE),
        Unsupported("data.num_classes model.num_classes num_classes", "Tandem counts the classes of the images"),
        Unsupported("model.checkpoint model.weights model.resume", "set base_model to a saved model, or use --resume"),
        Unsupported("model.class_path model._target_", _CODE),
        Unsupported("model.lr model.learning_rate", "set learning_rate"),
        Unsupported("model.*", "set family_options"),
        Unsupported("loss loss.* training.loss training.loss.* training.criterion criterion metrics", _CODE),
        Unsupported("training.resume checkpoint.resume* resume ckpt_path", "use --resume latest"),
        Unsupported("training.gradient_clip_algorithm", "Tandem clips the norm of all gradients", default="norm"),
        Unsupported("checkpoint.save_top_k", "the best weights are kept, and the last backups: set backups_kept"),
        Unsupported("training.deterministic training.benchmark", "Tandem repeats a run exactly, and chooses kernels"),
        Unsupported("parallel.rank parallel.local_rank parallel.init_method parallel.dist_url", _LAUNCH),
        Unsupported("parallel.timeout", "set step_timeout_s"),
        Unsupported("validation.enabled", "set validate_every", default=True),
        Unsupported("testing.batch_size", "the test is measured like a validation: set validation_batch_size"),
        Unsupported("validation.drop_last validation.shuffle testing.drop_last testing.shuffle", _ALL, default=False),
        Unsupported("validation.pin_memory testing.pin_memory", "set pin_memory, for all loaders", default=True),
        Unsupported(
            "validation.persistent_workers validation.prefetch_factor",
            "set persistent_workers and prefetch_factor, for all loaders",
        ),
        Unsupported("testing.num_workers", "the test has the loader of the validation"),
        Unsupported(
            "validation.validator.device testing.tester.device", "Tandem uses the device of the training",
            default="cuda",
        ),
        Unsupported("testing.enabled", _TEST, default=True),
        Unsupported("testing.*", _TEST),
        Unsupported("checkpoint.save_last", "the last backup is always kept", default=True),
        Unsupported("checkpoint.save_best", "the best weights are kept if there is a validation", default=True),
        Unsupported(
            "checkpoint.save_best_only checkpoint.monitor checkpoint.mode validation.metric",
            "set early_stopping_metric, which decides what the best weights are; set restore_best to save those",
        ),
        Unsupported("logging.dir logging.log_dir logging.path", "the run's folder contains the log"),
        Unsupported("logging.*", common.MONITOR),
        Unsupported("wandb wandb.* logging.wandb.*", common.MONITOR),
        Unsupported(
            "early_stopping.type", "Tandem ends after early_stopping_patience validations without improvement",
            default="DefaultEarlyStopping",
        ),
        Unsupported("training.optimizer_args", "give them by name, as optimizer_kwargs"),
        Unsupported("parallel.output_device", _LAUNCH),
        Unsupported("early_stopping.verbose training.verbosity training.verbose", common.MONITOR),
    ),
    renamed={other: name for name, others in _OTHER_NAMES.items() for other in others},
)  # fmt: skip
