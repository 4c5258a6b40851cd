"""Small training loops, one for each way in which a step can be made."""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F

kind = sys.argv[1]
torch.manual_seed(2)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
weights, biases = [p for p in model.parameters() if p.dim() > 1], [p for p in model.parameters() if p.dim() == 1]
data = [(torch.randn(5, 6), torch.randint(0, 3, (5,))) for _ in range(20)]


def say(**keys):
    print(json.dumps(keys), flush=True)


def norm_of(params):
    return torch.cat([p.grad.flatten() for p in params if p.grad is not None]).norm().item()


def plain_loss(number):
    x, y = data[number]
    return F.cross_entropy(model(x), y)


def two_optimizers():
    muon, adam = torch.optim.SGD(weights, lr=0.1), torch.optim.AdamW(biases, lr=0.01)
    for number in range(3):
        loss = plain_loss(number)
        loss.backward()
        say(loss=loss.item(), norm=norm_of(model.parameters()))
        for optimizer in (muon, adam):
            optimizer.step()
        for optimizer in (muon, adam):
            optimizer.zero_grad()


def adversarial():
    """A discriminator and a generator: two backwards, two steps in each iteration."""
    critic = nn.Linear(3, 1)
    first, second = torch.optim.SGD(critic.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        x, _ = data[number]
        critic(model(x).detach()).mean().backward()
        first.step()
        first.zero_grad()
        (-critic(model(x))).mean().backward()
        second.step()
        second.zero_grad()


def scaled(fused):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for number in range(4):
        x, y = data[number]
        x = x * float("inf") if number == 2 else x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        before = model[0].weight.detach().clone()
        scaler.scale(loss).backward()
        if number == 1:
            scaler.unscale_(optimizer)
            say(clipped=torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3).item())
        scaler.step(optimizer)
        scaler.update()
        say(loss=loss.item(), moved=not torch.equal(before, model[0].weight))
        optimizer.zero_grad()


def closure():
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    x, y = data[0]

    def evaluate():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(evaluate)


def in_backward():
    """Each parameter is updated while the backward is still running."""
    own = {p: torch.optim.SGD([p], lr=0.05) for p in model.parameters()}

    def update(param):
        own[param].step()
        own[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(update)
    for number in range(3):
        plain_loss(number).backward()


def nan_batch():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        x, y = data[number]
        x = x.clone()
        if number == 1:
            x[0, 0] = float("nan")
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number == 1:
            model.load_state_dict(saved)


def overflow():
    """A module in the middle makes an infinity from finite inputs; the gradient breaks at the same place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        x, y = data[number]
        if number == 1:
            with torch.no_grad():
                model[2].weight.fill_(3e38)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def split_clip():
    """get_total_norm and clip_grads_with_norm_, as torchtitan does; then two sets of parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        plain_loss(number).backward()
        say(norm=norm_of(model.parameters()))
        if number == 0:
            total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.7, total)
        else:
            torch.nn.utils.clip_grad_norm_(weights, 0.6)
            torch.nn.utils.clip_grad_norm_(biases, 0.6)
            torch.nn.utils.clip_grad_norm_(weights, float("inf"))
        optimizer.step()
        optimizer.zero_grad()


def checkpointed():
    """Activation checkpointing runs the forward again inside of the backward, and a backward in a backward."""
    from torch.utils.checkpoint import checkpoint

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, reentrant):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    whole = Whole()
    for number in range(4):
        x, y = data[number]
        F.cross_entropy(whole(x.requires_grad_(number % 2 == 0), number % 2 == 0), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def outside():
    """Autoencoding: the target of the loss is the tensor that the model was called with."""
    back = nn.Linear(3, 6)
    optimizer = torch.optim.SGD([*model.parameters(), *back.parameters()], lr=0.1)
    auto = nn.Sequential(model, back)
    for number in range(2):
        x, _ = data[number]
        loss = F.mse_loss(auto(x), x)
        loss.backward()
        say(loss=loss.item())
        optimizer.step()
        optimizer.zero_grad()
        nn.Identity()(x)  # a module without parameters, between two steps


def own_loss():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        x, y = data[number]
        logits = model(x)
        loss = (logits.logsumexp(1) - logits.gather(1, y[:, None])[:, 0]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def functional():
    """No module at all."""
    weight = torch.zeros(6, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for number in range(2):
        x, y = data[number]
        F.cross_entropy(x @ weight, y).backward()
        optimizer.step()
        optimizer.zero_grad()


def failing_backward():
    """A backward that raises is caught by the script; the batch is dropped."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        loss = plain_loss(number)
        if number == 1:
            loss.register_hook(lambda grad: 1 / 0)
        try:
            loss.backward()
        except ZeroDivisionError:
            continue
        optimizer.step()
        optimizer.zero_grad()


def swallowed():
    """SystemExit is caught by a loop that retries everything."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = open(sys.argv[2], "w")  # noqa: SIM115
    number = 0
    while number < 12:
        number += 1
        log.write(f"{number}\n")
        try:
            plain_loss(number).backward()
        except BaseException as error:
            say(caught=type(error).__name__)
            continue
        optimizer.step()
        optimizer.zero_grad()


def scripted():
    """torch.jit.script compiles the source of the loss function that the probe wraps."""

    @torch.jit.script
    def loss_of(logits, y):
        return torch.nn.functional.cross_entropy(logits, y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        x, y = data[number]
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def stuck():
    """An exit handler that never returns."""
    import threading

    threading.Thread(target=threading.Event().wait).start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        plain_loss(number).backward()
        optimizer.step()
        optimizer.zero_grad()


def traced():
    """torch.jit.trace and torch.fx look at the model while it is in training mode."""
    traced_graph = str(torch.jit.trace(model, data[0][0], check_trace=False).inlined_graph)
    symbolic = str(torch.fx.symbolic_trace(model).graph)
    say(traced=traced_graph, symbolic=symbolic)
    plain_loss(0).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def compiled_autocast():
    """Autocast inside of the compiled region is entered while it is traced, and never again."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, target):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.inner(x)
            return F.cross_entropy(logits.float(), target)

    mixed = torch.compile(Mixed(), backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        mixed(*data[number]).backward()
        optimizer.step()
        optimizer.zero_grad()


def last_words():
    """Exit handlers and worker processes of the script come before the end of the probe."""
    import atexit

    atexit.register(lambda: say(words="last"))
    two_optimizers()


saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
LOOPS = {
    "two-optimizers": two_optimizers,
    "adversarial": adversarial,
    "scaler": lambda: scaled(False),
    "scaler-fused": lambda: scaled(True),
    "closure": closure,
    "in-backward": in_backward,
    "nan-batch": nan_batch,
    "overflow": overflow,
    "split-clip": split_clip,
    "checkpointed": checkpointed,
    "outside": outside,
    "own-loss": own_loss,
    "functional": functional,
    "failing-backward": failing_backward,
    "swallowed": swallowed,
    "scripted": scripted,
    "stuck": stuck,
    "traced": traced,
    "compiled-autocast": compiled_autocast,
    "last-words": last_words,
}
LOOPS[kind]()
