"""BayesTrainer: training by Hugging Face's Trainer."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._predict import predict
from leanbayes._prediction import Prediction
from leanbayes._pretrained import WEIGHTS
from leanbayes._sampling import checkpoint_contexts
from leanbayes._save import load
from leanbayes.convert import param_groups
from leanbayes.huggingface.scores import Scores, is_labelled
from leanbayes.nn._base import Converted
from leanbayes.objectives.elbo import ELBO, Terms
from leanbayes.objectives.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.training.parts import check_not_held_out

# The objective's state but for the model's: the step count of the KL schedule, and a learned noise.
_STATE = "elbo.safetensors"


class ELBOTraining:
    """Hugging Face's Trainer with the ELBO as its loss; `leanbayes.huggingface.BayesTrainer` joins it with the class.

    Takes the Trainer's arguments. The loss is the ELBO of the whole accumulated batch, over all processes and in nats
    per target (a label, a token), like the Trainer's own:

    ``(sum of NLL + weight * KL * examples / dataset_size) / targets``

    Optimisers get the groups of `lb.param_groups`. Checkpoints hold the converted model, as `save_pretrained` writes
    it, and the step count of the KL schedule, so a resumed run continues as if it had not stopped.
    ``gradient_checkpointing=True`` keeps the draws automatically. Evaluation averages the probabilities of several
    samples: ``eval_loss`` is the NLL per target of that prediction, with ``eval_nll``, ``eval_accuracy``, ``eval_ece``,
    ``eval_entropy`` and ``eval_mutual_information``, and `compute_metrics` gets log-probabilities as logits.
    Logs ``nll`` (per target), ``kl`` (in nats) and ``kl_weight`` along with the loss.

    Runs on one device, or on several with ``torchrun`` (DDP); FSDP, DeepSpeed and `nn.DataParallel` are refused.

    Args:
        model: A converted model of transformers, or a plain one, whose outputs have ``logits``.
        args: The Trainer's arguments.
        further: Further arguments of the Trainer, by position.
        dataset_size: Number of training examples (rows, not tokens) over all processes; None takes the length of the
            training data.
        likelihood: How logits explain labels. None takes classes on the last axis, with the arguments' label
            smoothing, and `Bernoulli` or ``Gaussian("learned")`` if the configuration's ``problem_type`` asks for it.
        kl_weight: See `ELBO`.
        components: See `ELBO`.
        tile: See `ELBO`.
        samples: See `ELBO`.
        eval_samples: Samples of a prediction in evaluation.
        variational_lr: Learning rate of what the method added, see `lb.param_groups`.
        options: Further arguments of the Trainer, by keyword.
    """

    # Newer Trainers ask this, older ones the attribute that is set below: the loss is that of the accumulated batch.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *further: Any,
        dataset_size: int | None = None,
        likelihood: Likelihood | None = None,
        kl_weight: float | Callable[[int], float] = 1.0,
        components: Literal["average", "mixture"] = "average",
        tile: bool = True,
        samples: int = 1,
        eval_samples: int = 20,
        variational_lr: float | None = None,
        **options: Any,
    ) -> None:
        if args is not None:
            _check(args)
        super().__init__(model, args, *further, **options)  # pyright: ignore[reportCallIssue]
        self._trainer: Any = self
        self._trainer.model_accepts_loss_kwargs = True
        _check(self._trainer.args)
        if self._trainer.args.gradient_checkpointing and isinstance(self._trainer.model, Converted):
            raise ValueError(
                "gradient_checkpointing=True is not offered for deep ensembles; train the members one by one, or leave "
                "it out"
            )
        self.likelihood = self._default_likelihood() if likelihood is None else likelihood
        check_not_held_out("BayesTrainer", self.likelihood)
        self.likelihood.to(self._trainer.args.device)
        self.dataset_size = dataset_size
        self.eval_samples = eval_samples
        self.variational_lr = variational_lr
        self._settings: dict[str, Any] = {
            "kl_weight": kl_weight,
            "components": components,
            "tile": tile,
            "samples": samples,
        }
        self._sums: list[Tensor] = []
        self._scores: Scores | None = None
        self.elbo: ELBO | None = None

    def train(self, *args: Any, **options: Any) -> Any:
        """See the Trainer; every run has an objective of its own, whose steps are counted from 0 or the checkpoint."""
        trainer: Any = super()
        self.elbo = ELBO(self._trainer.model, self._training_examples(), self.likelihood, **self._settings)
        return trainer.train(*args, **options)

    def create_optimizer(self, model: Any = None) -> Any:
        """The arguments' optimiser on the groups of `lb.param_groups`."""
        trainer = self._trainer
        if trainer.optimizer is not None:
            return trainer.optimizer
        given = getattr(trainer, "optimizer_cls_and_kwargs", None)
        kind, found = given or trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
        settings = dict(found)
        ordinary = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if not ordinary or settings.keys() & {"params", "model", "optimizer_dict"}:
            raise ValueError(
                f"optim={trainer.args.optim} groups parameters itself, and would decay those that are in a KL term; "
                "use one of torch's optimisers, such as 'adamw_torch'"
            )
        lr = settings.pop("lr", trainer.args.learning_rate)
        decay = settings.pop("weight_decay", trainer.args.weight_decay)
        owner = trainer.model if self.elbo is None else self.elbo
        trainer.optimizer = kind(param_groups(owner, lr, decay, self.variational_lr), **settings)
        return trainer.optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **options: Any,
    ) -> Any:
        """The batch's part of the ELBO of the accumulated batch."""
        terms, y = self._terms(model, inputs)
        count = self._targets(y)
        total = torch.as_tensor(count if num_items_in_batch is None else num_items_in_batch, device=count.device)
        # A batch without a target teaches nothing, and must not make the loss infinite.
        loss = terms.loss * torch.where(total > 0, len(y) / total.clamp_min(1), 0.0)
        args = self._trainer.args
        if num_items_in_batch is not None and args.average_tokens_across_devices:
            loss = loss * args.world_size  # gradients are averaged over processes
        assert self.elbo is not None
        parts = (terms.nll * len(y), count, terms.kl, self.elbo.weight_now)
        self._sums.append(torch.stack([part.detach().to(terms.nll) for part in parts]))
        return (loss, {"loss": loss, "logits": terms.outputs.mean(0)}) if return_outputs else loss

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The NLL per target of a prediction with several samples, its log-probabilities (or means) and the labels."""
        trainer = self._trainer
        inputs = trainer._prepare_inputs(inputs)
        x, y = self._split(inputs)
        labelled = y is not None and is_labelled(self.likelihood, y)
        # In training it is the objective that the accelerator has prepared, and not the model alone.
        with trainer.compute_loss_context_manager(), trainer.accelerator.autocast():
            prediction = predict(
                model,
                x,
                self.eval_samples,
                likelihood=self.likelihood,
                seed=trainer.args.seed,
                # The mean probability of each target is enough: no [S, B, T, V] is held.
                keep="summary" if labelled or y is None else "outputs",
            )
        loss = None
        if y is not None:
            found = Scores.of(prediction, y)
            loss = -found[..., 0].nanmean()
            if self._scores is not None:
                padded = trainer.accelerator.pad_across_processes(found, dim=1, pad_index=torch.nan)
                self._scores.add(trainer.gather_function(padded))
        if prediction_loss_only:
            return loss, None, None
        return loss, _as_logits(prediction), None if y is None else inputs[self._label_name()]

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **options: Any) -> Any:
        """See the Trainer; adds the scores of the prediction."""
        trainer: Any = super()
        self._scores = Scores(self.likelihood)
        try:
            # Loaders draw a seed; training goes on as if nothing had been drawn.
            with torch.random.fork_rng(devices=[]):
                output = trainer.evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **options)
            scores = self._scores.summary()
            for name, value in scores.items():
                output.metrics.setdefault(f"{metric_key_prefix}_{name}", value)
            if "nll" in scores:  # the Trainer averages over batches, whatever their numbers of targets
                output.metrics[f"{metric_key_prefix}_loss"] = scores["nll"]
        finally:
            self._scores = None
        return output

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """See the Trainer; adds the parts of the loss since the last time."""
        trainer: Any = super()
        if "loss" in logs and self._sums:
            sums = torch.stack(self._sums)
            # All processes log, and the Trainer's own loss is that of all.
            nll, count = self._trainer.accelerator.reduce(sums[:, :2].sum(0), "sum").tolist()
            kl, weight = sums[-1, 2:].tolist()
            logs |= {"nll": nll / count if count else math.nan, "kl": kl, "kl_weight": weight}
            self._sums.clear()
        trainer.log(logs, *args, **options)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Tensor | None:
        """Targets of the accumulated batch, over all processes where the arguments ask for that."""
        trainer = self._trainer
        found = [self._split(batch)[1] for batch in batch_samples]
        if not found or any(y is None for y in found):
            return None
        count = torch.stack([self._targets(y) for y in found if y is not None]).sum().to(device)
        if trainer.args.average_tokens_across_devices and trainer.args.world_size > 1:
            count = trainer.accelerator.gather(count).sum()
        return count

    def _set_signature_columns_if_needed(self) -> None:
        """See the Trainer, which keeps what the model's forward takes; an ensemble takes what its members do."""
        trainer, model = self._trainer, self._trainer.model
        if isinstance(model, Converted) and trainer._signature_columns is None:
            names = inspect.signature(_base(_plain(model)).forward).parameters
            trainer._signature_columns = [*names, "label", "label_ids", *trainer.label_names]
        super()._set_signature_columns_if_needed()  # pyright: ignore[reportAttributeAccessIssue]

    def _wrap_model(self, model: nn.Module, training: bool = True, *args: Any, **options: Any) -> nn.Module:
        """The objective as it is run: the Trainer takes it for a model that is wrapped already."""
        trainer: Any = super()
        if not training or self.elbo is None:
            return trainer._wrap_model(model, training, *args, **options)
        if self._trainer.args.gradient_checkpointing:
            settings = dict(self._trainer.args.gradient_checkpointing_kwargs or {})
            own = {name: settings.pop(name) for name in ("every_n_layers", "offload") if name in settings}
            settings |= {"use_reentrant": False, "context_fn": checkpoint_contexts}
            self._trainer.model.gradient_checkpointing_enable(settings, **own)
        trainer._wrap_model(self._trainer.model, training, *args, **options)  # which settles how DDP will wrap
        return self._trainer.accelerator.prepare_model(self.elbo)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        from safetensors.torch import save_file

        trainer: Any = super()
        trainer._save(output_dir, state_dict)
        if self.elbo is not None and self._trainer.args.should_save:
            folder = self._trainer.args.output_dir if output_dir is None else output_dir
            state = {name: value for name, value in self.elbo.state_dict().items() if not name.startswith("model.")}
            save_file({name: value.cpu().contiguous() for name, value in state.items()}, os.path.join(folder, _STATE))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        trainer: Any = super()
        if not self._load_converted(resume_from_checkpoint, model):
            trainer._load_from_checkpoint(resume_from_checkpoint, model)
        assert self.elbo is not None
        state = self._read_state(resume_from_checkpoint)
        self.elbo.load_state_dict(state, strict=False)  # the model's own state is in another file

    def _load_best_model(self) -> None:
        trainer: Any = super()
        best = self._trainer.state.best_model_checkpoint
        if not self._load_converted(best):
            trainer._load_best_model()
        # Its noise as well; the steps of the objective are those that were taken.
        prefix, state = "likelihood.", self._read_state(best)
        noise = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        self.likelihood.load_state_dict(noise)

    def _read_state(self, folder: str) -> dict[str, Tensor]:
        """The objective's state in a checkpoint, but for the model's."""
        from safetensors.torch import load_file

        path = os.path.join(folder, _STATE)
        if not os.path.isfile(path):
            raise ValueError(f"{folder} has no {_STATE}; a BayesTrainer resumes from its own checkpoints")
        return load_file(path)

    def _load_converted(self, folder: str, model: Any = None) -> bool:
        """Read the weights of a converted model from a folder that has them, and say whether it has."""
        path = os.path.join(folder, WEIGHTS)
        if not os.path.isfile(path):
            return False
        load(path, self._trainer.model if model is None else model)
        return True

    def _terms(self, model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Terms, Tensor]:
        x, y = self._split(inputs)
        if y is None:
            raise ValueError(
                f"the batch has no {self._label_name()!r}, only {', '.join(inputs)}; the ELBO needs targets"
            )
        if self.elbo is None:
            raise ValueError("the loss is only computed during training; call train() first")
        return (model if model is self._trainer.model_wrapped else self.elbo)(x, y), y

    def _split(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        """What the model is given, and the targets of its logits, None where there are no labels."""
        label = self._label_name()
        dropped = {label, "num_items_in_batch", "return_loss"}
        x = {name: value for name, value in inputs.items() if name not in dropped and value is not None}
        y = inputs.get(label)
        if y is None:
            return x, None
        model = _plain(self._trainer.model)
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            if not x.keys() & {"decoder_input_ids", "decoder_inputs_embeds"}:
                if hasattr(model, "prepare_decoder_input_ids_from_labels"):
                    x["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=y)
                else:
                    x[label] = y  # which such a model shifts by itself
        elif _predicts_next(model):
            # The logits of a position are for the token after it; the last one has no target.
            y = torch.cat([y[..., 1:], torch.full_like(y[..., :1], -100)], -1)
        return x, y

    def _targets(self, y: Tensor) -> Tensor:
        """Number of labels that count, of examples for other targets."""
        if not is_labelled(self.likelihood, y):
            return torch.tensor(len(y), device=y.device)
        assert isinstance(self.likelihood, Categorical)
        return (y != self.likelihood.ignore_index).sum()

    def _label_name(self) -> str:
        names = self._trainer.label_names
        if len(names) > 1:
            raise ValueError(f"the model has several labels, {', '.join(names)}; the ELBO takes those of one output")
        return names[0] if names else "labels"

    def _default_likelihood(self) -> Likelihood:
        model = _plain(self._trainer.model)
        config = getattr(model, "config", None)
        kind, width = getattr(config, "problem_type", None), getattr(config, "num_labels", 1)
        if kind == "multi_label_classification":
            return Bernoulli()
        if kind == "regression" or (kind is None and width == 1 and _is_about_whole_texts(model)):
            return Gaussian("learned", outputs=width)
        return Categorical(label_smoothing=self._trainer.args.label_smoothing_factor, class_dim=-1)

    def _training_examples(self) -> int:
        if self.dataset_size is not None:
            return self.dataset_size
        try:
            return len(self._trainer.train_dataset)
        except TypeError:
            raise ValueError(
                "the training data has no length; pass dataset_size, the number of training examples over all "
                "processes: BayesTrainer(..., dataset_size=50_000)"
            ) from None


def _predicts_next(model: Any) -> bool:
    """Whether a decoder's logits are for the next token, so that its own loss would shift the labels."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    base = _base(model)
    shifting = getattr(base, "loss_type", None) in ("ForCausalLM", "ForConditionalGeneration")
    return shifting or type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def _is_about_whole_texts(model: Any) -> bool:
    """Whether the logits are for a whole example; transformers takes a single one for a regression."""
    return getattr(_base(model), "loss_type", None) == "ForSequenceClassification"


def _plain(model: Any) -> Any:
    """What transformers knows of a model: the member of a deep ensemble, which has its type and configuration."""
    return model.plain_view() if isinstance(model, Converted) else model


def _base(model: Any) -> Any:
    """The model that an adapter adapts; itself where there is none."""
    return model.get_base_model() if callable(getattr(model, "get_base_model", None)) else model


def _check(args: Any) -> None:
    """Raise where arguments ask for what a converted model cannot do."""
    if (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        raise ValueError(
            "reentrant checkpointing does not keep the draws of a converted model; leave use_reentrant out of "
            "gradient_checkpointing_kwargs"
        )
    if args.fsdp or args.deepspeed:
        raise ValueError(
            "BayesTrainer saves whole tensors, which FSDP and DeepSpeed split over processes; use DDP, or wrap an "
            "lb.ELBO in your own training loop"
        )
    if args.n_gpu > 1:
        raise ValueError(
            "draws do not reach the threads of nn.DataParallel; start with torchrun, or let CUDA_VISIBLE_DEVICES name "
            "one GPU"
        )


def _as_logits(prediction: Prediction) -> Tensor:
    """The prediction in a form that metrics read like one model's logits; means for real targets."""
    if isinstance(prediction.likelihood, Gaussian):
        return prediction.mean
    probs = prediction.probs
    if isinstance(prediction.likelihood, Bernoulli):
        return probs.logit(eps=torch.finfo(probs.dtype).eps)
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


@cache
def bayes_trainer() -> type:
    """The class `BayesTrainer`; made when it is first asked for, since importing the Trainer takes seconds."""
    if any(find_spec(name) is None for name in ("transformers", "accelerate")):
        raise ImportError("BayesTrainer needs transformers and accelerate: pip install 'leanbayes[transformers]'")
    from transformers import Trainer

    about = {"__module__": "leanbayes.huggingface", "__doc__": ELBOTraining.__doc__}
    return type("BayesTrainer", (ELBOTraining, Trainer), about)
