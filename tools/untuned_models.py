"""Writes training graphs of architectures that nobody tuned on, from public packages, to try ckpt-opt on.

Usage: untuned_models.py FOLDER [--only NAME ...]
       untuned_models.py --list

    python3 -m venv VENV
    VENV/bin/pip install onnxruntime-training-cpu==1.19.2 onnx==1.16.2 "numpy<2" protobuf==5.29.5 \\
        torch==2.2.2 torchvision==0.17.2 transformers==4.44.2 timm==1.0.9 "setuptools<81"
    VENV/bin/python tools/untuned_models.py FOLDER

Each network is small, has random weights, computes its own loss, is exported by PyTorch and differentiated by ONNX Runtime,
as the guide does it. Every third has a fixed batch (FOLDER/NAME_fixed.onnx), the others a batch called `batch`; another third
is exported with constants folded, which leaves weights in the file that are not trained; every fifth has operator set 17. Where
that fails, 15 and 13 are tried. Some have no gradient of some operator; why one failed is printed.

Then, for instance:

    tools/truth_table.py --binary target/release/ckpt-opt --models FOLDER --dim batch=16 --session usual --budgets fixed+50%
"""

import argparse
import os
import subprocess
import sys
import tempfile

SECONDS = 240

# By name: the model of timm, the size of its images, and options.
TIMM = {
    "bott": ("botnet26t_256", 64, {"img_size": 64}),
    "cait": ("cait_xxs24_224", 64, {"img_size": 64, "depth": 4}),
    "coat": ("coat_tiny", 64, {"img_size": 64}),
    "convnext": ("convnext_atto", 64, {}),
    "crossvit": ("crossvit_tiny_240", 240, {}),
    "cspdark": ("cspdarknet53", 64, {}),
    "davit": ("davit_tiny", 64, {}),
    "deit": ("deit_tiny_patch16_224", 64, {"img_size": 64, "depth": 4}),
    "dla": ("dla34", 64, {}),
    "eca": ("eca_nfnet_l0", 64, {}),
    "edgenext": ("edgenext_xx_small", 64, {}),
    "efficientformer": ("efficientformer_l1", 224, {}),
    "efficientnet_lite": ("efficientnet_lite0", 64, {}),
    "eva": ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 3}),
    "fastvit": ("fastvit_t8", 64, {}),
    "focalnet": ("focalnet_tiny_srf", 64, {}),
    "gcresnet": ("gcresnet33ts", 64, {}),
    "ghostnet": ("ghostnet_050", 64, {}),
    "gmlp": ("gmlp_ti16_224", 64, {"img_size": 64}),
    "hrnet": ("hrnet_w18_small", 64, {}),
    "inception_next": ("inception_next_tiny", 64, {}),
    "inception_v4": ("inception_v4", 96, {}),
    "lambda": ("lambda_resnet26t", 64, {}),
    "levit": ("levit_128s", 224, {}),
    "maxvit": ("maxvit_rmlp_pico_rw_256", 64, {"img_size": 64}),
    "mixer": ("mixer_s32_224", 64, {"img_size": 64}),
    "mnasnet": ("mnasnet_small", 64, {}),
    "mobileone": ("mobileone_s0", 64, {}),
    "mobilevit": ("mobilevit_xxs", 64, {}),
    "mvit": ("mvitv2_tiny", 64, {"img_size": 64}),
    "nf_resnet": ("nf_resnet26", 64, {}),
    "pit": ("pit_ti_224", 224, {}),
    "poolformer": ("poolformerv2_s12", 64, {}),
    "regnet": ("regnety_002", 64, {}),
    "repvgg": ("repvgg_a0", 64, {}),
    "repvit": ("repvit_m0_9", 64, {}),
    "res2net": ("res2net50_26w_4s", 64, {}),
    "resmlp": ("resmlp_12_224", 64, {"img_size": 64}),
    "resnest": ("resnest14d", 64, {}),
    "rexnet": ("rexnet_100", 64, {}),
    "selecsls": ("selecsls42b", 64, {}),
    "sknet": ("skresnet18", 64, {}),
    "swin": ("swin_tiny_patch4_window7_224", 56,
             {"img_size": 56, "window_size": 7, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 4)}),
    "tiny_vit": ("tiny_vit_5m_224", 64, {}),
    "tnt": ("tnt_s_patch16_224", 64, {"img_size": 64}),
    "twins": ("twins_pcpvt_small", 64, {"img_size": 64}),
    "visformer": ("visformer_tiny", 224, {}),
    "vovnet": ("ese_vovnet19b_dw", 64, {}),
    "xception": ("xception41", 96, {}),
    "xcit": ("xcit_nano_12_p16_224", 64, {"img_size": 64}),
}
TORCHVISION = {
    "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64, "inception_v3": 299, "mnasnet0_5": 64, "regnet_x_400mf": 64,
    "resnext50_32x4d": 64, "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "vit_b_32": 64, "wide_resnet50_2": 64,
}

WORDS = 100
TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": WORDS,
        "max_position_embeddings": 64}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": 64}
EAGER = {"attn_implementation": "eager"}
PAIR = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": WORDS, "max_position_embeddings": 64}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS}
IMAGE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 64,
         "patch_size": 16, "num_labels": 10}
STAGES = {"hidden_sizes": [16, 32, 64, 64], "num_labels": 10}

# By name: the class of transformers, without what all of its kind have in their names, and its configuration.
CAUSAL = {
    "bloom": ("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}),
    "codegen": ("CodeGen", {**GPT, "rotary_dim": 8}),
    "cohere": ("Cohere", {**TEXT, **EAGER, "num_key_value_heads": 2}),
    "falcon": ("Falcon", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": WORDS, **EAGER}),
    "gemma": ("Gemma", {**TEXT, **EAGER, "num_key_value_heads": 1, "head_dim": 16}),
    "gpt_j": ("GPTJ", {**GPT, **EAGER, "rotary_dim": 8}),
    "gpt_neo": ("GPTNeo", {"hidden_size": 64, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4,
                           "vocab_size": WORDS, "max_position_embeddings": 64}),
    "gpt_neox": ("GPTNeoX", {**TEXT, **EAGER}),
    "mamba": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": WORDS, "state_size": 4}),
    "mistral": ("Mistral", {**TEXT, **EAGER, "num_key_value_heads": 2}),
    "mpt": ("Mpt", {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": WORDS, "max_seq_len": 64}),
    "olmo": ("Olmo", {**TEXT, **EAGER}),
    "opt": ("OPT", {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": WORDS,
                    "max_position_embeddings": 64, "word_embed_proj_dim": 64, **EAGER}),
    "phi": ("Phi", {**TEXT, **EAGER}),
    "qwen2": ("Qwen2", {**TEXT, **EAGER, "num_key_value_heads": 2}),
    "stablelm": ("StableLm", {**TEXT, **EAGER, "num_key_value_heads": 4}),
    "starcoder2": ("Starcoder2", {**TEXT, **EAGER, "num_key_value_heads": 2}),
    "xglm": ("XGLM", {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 128, "vocab_size": WORDS,
                      "max_position_embeddings": 64}),
}
MASKED = {
    "albert": ("Albert", {**TEXT, "embedding_size": 32}),
    "convbert": ("ConvBert", {**TEXT, "embedding_size": 32}),
    "deberta": ("Deberta", TEXT),
    "deberta_v2": ("DebertaV2", {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "distilbert": ("DistilBert", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": WORDS}),
    "electra": ("Electra", {**TEXT, "embedding_size": 32}),
    "fnet": ("FNet", {**TEXT, "use_tpu_fourier_optimizations": False}),
    "funnel": ("Funnel", {"d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128, "vocab_size": WORDS, "block_sizes": [1, 1]}),
    "ibert": ("IBert", TEXT),
    "megatron": ("MegatronBert", TEXT),
    "mobilebert": ("MobileBert", {**TEXT, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}),
    "mpnet": ("MPNet", TEXT),
    "roberta": ("Roberta", TEXT),
    "roformer": ("RoFormer", {**TEXT, "embedding_size": 64}),
    "squeezebert": ("SqueezeBert", {**TEXT, "embedding_size": 64}),
}
PAIRS = {
    "bart": ("Bart", {**PAIR, **EAGER}),
    "blenderbot": ("Blenderbot", {**PAIR, "encoder_layers": 1}),
    "mt5": ("MT5", T5),
    "pegasus": ("Pegasus", PAIR),
    "t5": ("T5", T5),
}
# The size of the images behind it.
VISION = {
    "beit": ("Beit", IMAGE, 64),
    "convnext_v2": ("ConvNextV2", {**STAGES, "depths": [1, 1, 2, 1]}, 64),
    "dinov2": ("Dinov2", {**IMAGE, **EAGER}, 64),
    "focalnet": ("FocalNet", {"num_labels": 10, "embed_dim": 32, "depths": [1, 1, 1, 1], "image_size": 64}, 64),
    "levit": ("Levit", {"num_labels": 10}, 224),
    "pvt": ("Pvt", {**STAGES, "image_size": 64, "depths": [1, 1, 1, 1]}, 64),
    "segformer": ("Segformer", {**STAGES, "depths": [1, 1, 1, 1], "decoder_hidden_size": 32, "num_attention_heads": [1, 2, 4, 4]}, 64),
    "swiftformer": ("SwiftFormer", {"num_labels": 10, "depths": [1, 1, 2, 1]}, 64),
    "van": ("Van", {**STAGES, "depths": [1, 1, 2, 1]}, 64),
}


def networks():
    """By name: what gives the network, its inputs and their names. Nothing heavy is imported before that."""
    found = {}
    for name, (model, size, options) in TIMM.items():
        found[f"timm_{name}"] = lambda model=model, size=size, options=options: of_timm(model, size, options)
    for name, size in TORCHVISION.items():
        found[f"torchvision_{name}"] = lambda name=name, size=size: of_torchvision(name, size)
    for kind, table, ending, make in [("causal", CAUSAL, "ForCausalLM", text), ("masked", MASKED, "ForMaskedLM", text),
                                      ("pair", PAIRS, "ForConditionalGeneration", pair)]:
        for name, (model, config) in table.items():
            found[f"{kind}_{name}"] = (lambda model=model, config=config, ending=ending, make=make:
                                       make(of_transformers(model, ending, config)))
    for name, (model, config, size) in VISION.items():
        found[f"vision_{name}"] = (lambda model=model, config=config, size=size:
                                   images(of_transformers(model, "ForImageClassification", config), size))
    for make in [autoencoder, coupling_layers, contrastive, cross_network, distillation, wavenet]:
        found[make.__name__] = make
    return found


def with_loss(network, loss):
    """The network and its loss as one."""
    import torch

    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network

        def forward(self, *inputs):
            return loss(self.net, *inputs)

    return Trained()


def images(network, size, batch=2):
    import torch

    def loss(net, x, y):
        scores = net(x)
        scores = scores if torch.is_tensor(scores) else scores[0]
        return torch.nn.functional.cross_entropy(scores, y)

    return with_loss(network, loss), (torch.rand(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)), ["x", "y"]


def words(length=16, batch=2):
    import torch

    return torch.randint(3, WORDS, (batch, length))


def text(network):
    import torch

    def loss(net, x, y):
        return torch.nn.functional.cross_entropy(net(input_ids=x)[0].transpose(1, 2), y)

    return with_loss(network, loss), (words(), words()), ["x", "y"]


def pair(network):
    import torch

    def loss(net, x, before, y):
        return torch.nn.functional.cross_entropy(net(input_ids=x, decoder_input_ids=before)[0].transpose(1, 2), y)

    return with_loss(network, loss), (words(), words(), words()), ["x", "before", "y"]


def of_timm(model, size, options):
    import timm

    return images(timm.create_model(model, num_classes=10, **options), size)


def of_torchvision(name, size):
    import torchvision

    options = {"vit_b_32": {"image_size": size}, "inception_v3": {"aux_logits": False, "init_weights": False}}
    return images(getattr(torchvision.models, name)(weights=None, num_classes=10, **options.get(name, {})), size)


def of_transformers(model, ending, config):
    import transformers

    # What is kept from step to step is of no use in training.
    config = getattr(transformers, model + "Config")(**config, use_cache=False)
    return getattr(transformers, model + ending)(config)


def autoencoder():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 64))
            self.decode = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784))

        def forward(self, x, noise):
            mean, log = self.encode(x).chunk(2, 1)
            found = self.decode(mean + torch.exp(0.5 * log) * noise)
            return nn.functional.mse_loss(found, x) - 0.5 * torch.mean(1 + log - mean * mean - log.exp())

    return Network(), (torch.rand(8, 784), torch.rand(8, 32)), ["x", "noise"]


def coupling_layers():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 32)) for _ in range(6))

        def forward(self, x):
            a, b = x.chunk(2, 1)
            volume = 0
            for layer in self.layers:
                scale, shift = layer(a).chunk(2, 1)
                scale = torch.tanh(scale)
                volume = volume + scale.sum(1)
                a, b = b * torch.exp(scale) + shift, a
            z = torch.cat([a, b], 1)
            return (0.5 * (z * z).sum(1) - volume).mean()

    return Network(), (torch.rand(64, 32),), ["x"]


def contrastive():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1),
                                        nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 32))

        def forward(self, a, b, y):
            a, b = (nn.functional.normalize(self.encode(x), dim=1) for x in (a, b))
            return nn.functional.cross_entropy(a @ b.t() / 0.1, y)

    return Network(), (torch.rand(8, 3, 32, 32), torch.rand(8, 3, 32, 32), torch.arange(8)), ["a", "b", "y"]


def cross_network():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 16)
            self.cross = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
            self.head = nn.Sequential(nn.Linear(128, 256), nn.Dropout(0.2), nn.GELU(), nn.Linear(256, 1))

        def forward(self, x, y):
            first = self.embed(x).flatten(1)
            found = first
            for layer in self.cross:
                found = first * layer(found) + found
            return nn.functional.mse_loss(self.head(found).squeeze(1), y)

    return Network(), (torch.randint(0, 1000, (64, 8)), torch.rand(64)), ["x", "y"]


def distillation():
    import torch
    import torchvision
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = torchvision.models.resnet18(num_classes=10)
            self.teacher = torchvision.models.resnet34(num_classes=10).requires_grad_(False)

        def forward(self, x, y):
            with torch.no_grad():
                taught = self.teacher(x)
            scores = self.student(x)
            soft = nn.functional.mse_loss(nn.functional.softmax(scores / 4, 1), nn.functional.softmax(taught / 4, 1))
            return nn.functional.cross_entropy(scores, y) + soft

    return Network(), (torch.rand(2, 3, 64, 64), torch.zeros(2, dtype=torch.long)), ["x", "y"]


def wavenet():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv1d(1, 32, 1)
            self.wide = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**i, padding=2**i) for i in range(6))
            self.narrow = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(6))
            self.last = nn.Conv1d(32, 1, 1)

        def forward(self, x, y):
            found, skipped = self.first(x), 0
            for wide, narrow in zip(self.wide, self.narrow):
                signal, gate = wide(found)[:, :, : x.shape[2]].chunk(2, 1)
                found = found + narrow(torch.tanh(signal) * torch.sigmoid(gate))
                skipped = skipped + found
            return nn.functional.mse_loss(self.last(nn.functional.relu(skipped)), y)

    return Network(), (torch.rand(2, 1, 512), torch.rand(2, 1, 512)), ["x", "y"]


def write(name, path, opset, fixed, folded):
    import onnx
    import torch
    from onnxruntime.training import artifacts

    torch.manual_seed(0)
    network, inputs, names = networks()[name]()
    network.train()
    with tempfile.TemporaryDirectory() as folder:
        forward = os.path.join(folder, "forward.onnx")
        torch.onnx.export(network, inputs, forward, opset_version=opset, training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=folded, input_names=names, output_names=["loss"],
                          dynamic_axes=None if fixed else {name: {0: "batch"} for name in names})
        model = onnx.load(forward)
        held = {initializer.name for initializer in model.graph.initializer}
        trained, frozen = ([name for name, parameter in network.named_parameters()
                            if parameter.requires_grad == wanted and name in held] for wanted in (True, False))
        # The first output is the loss.
        artifacts.generate_artifacts(model, requires_grad=trained, frozen_params=frozen, artifact_directory=folder)
        os.replace(os.path.join(folder, "training_model.onnx"), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", nargs=4, metavar=("NAME", "OPSET", "FIXED", "FOLDED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list:
        print("\n".join(networks()))
        return 0
    if args.folder is None:
        parser.error("expected a folder")
    if args.write:
        name, opset, fixed, folded = args.write
        write(name, args.folder, int(opset), fixed == "True", folded == "True")
        return 0
    os.makedirs(args.folder, exist_ok=True)
    # Attention in its pieces, which is what has gradients.
    environment = dict(os.environ, TIMM_FUSED_ATTN="0")
    for number, name in enumerate(networks()):
        if args.only and name not in args.only:
            continue
        fixed, folded = number % 3 == 2, number % 3 == 0
        path = os.path.join(args.folder, name + ("_fixed" if fixed else "") + ".onnx")
        for opset in dict.fromkeys([17 if number % 5 == 1 else 15, 15, 13]):
            command = [sys.executable, __file__, path, "--write", name, str(opset), str(fixed), str(folded)]
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                print(f"{name}, opset {opset}: not done after {SECONDS} s", flush=True)
                continue
            if done.returncode == 0:
                print(path, flush=True)
                break
            said = [line for line in done.stderr.splitlines() if line.strip()]
            print(f"{name}, opset {opset}: {said[-1][-300:] if said else done.returncode}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
