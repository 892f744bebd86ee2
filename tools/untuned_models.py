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
# By name: the class, its configuration, and the inputs by name, each with its sizes behind the batch; a whole number in front of them is how
# many words there are to choose from.
SOUND = {**TEXT, "conv_dim": [32, 32], "conv_stride": [5, 4], "conv_kernel": [10, 8], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16,
         "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False, "feat_extract_norm": "layer"}
VIDEO = {**IMAGE, "image_size": 32, "num_frames": 4, "tubelet_size": 2, **EAGER}
OTHERS = {
    "audio_spectrogram": ("ASTForAudioClassification", {**TEXT, "patch_size": 8, "max_length": 64, "num_mel_bins": 32, **EAGER},
                          {"input_values": [64, 32]}),
    "big_bird": ("BigBirdForMaskedLM", {**TEXT, "attention_type": "original_full"}, {"input_ids": [WORDS, 16]}),
    "canine": ("CanineForSequenceClassification", {**TEXT, "local_transformer_stride": 16, "num_hash_buckets": 64}, {"input_ids": [WORDS, 64]}),
    "clip_text": ("CLIPTextModel", {**TEXT, **EAGER, "eos_token_id": 2}, {"input_ids": [WORDS, 16]}),
    "decision": ("DecisionTransformerModel", {"state_dim": 8, "act_dim": 3, "hidden_size": 64, "n_layer": 2, "n_head": 4, "max_ep_len": 64},
                 {"states": [10, 8], "actions": [10, 3], "rewards": [10, 1], "returns_to_go": [10, 1], "timesteps": [64, 10]}),
    "depth_glpn": ("GLPNForDepthEstimation", {"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4],
                                              "decoder_hidden_size": 32}, {"pixel_values": [3, 64, 64]}),
    "electra_pairs": ("ElectraForMultipleChoice", {**TEXT, "embedding_size": 32}, {"input_ids": [WORDS, 2, 16]}),
    "fsmt": ("FSMTForConditionalGeneration", {**PAIR, "src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["a", "b"]},
             {"input_ids": [WORDS, 16], "decoder_input_ids": [WORDS, 16]}),
    "hubert": ("HubertForSequenceClassification", {**SOUND, **EAGER}, {"input_values": [800]}),
    "luke": ("LukeForSequenceClassification", {**TEXT, "entity_vocab_size": WORDS, "entity_emb_size": 32}, {"input_ids": [WORDS, 16]}),
    "perceiver": ("PerceiverForMaskedLM", {"num_latents": 16, "d_latents": 64, "d_model": 64, "num_blocks": 1, "num_self_attends_per_block": 2,
                                           "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "vocab_size": WORDS,
                                           "max_position_embeddings": 16, "qk_channels": 64, "v_channels": 64}, {"inputs": [WORDS, 16]}),
    "rembert": ("RemBertForMaskedLM", {**TEXT, "input_embedding_size": 32, "output_embedding_size": 32}, {"input_ids": [WORDS, 16]}),
    "sew": ("SEWForSequenceClassification", {**SOUND, "squeeze_factor": 2, **EAGER}, {"input_values": [800]}),
    "splinter": ("SplinterForQuestionAnswering", TEXT, {"input_ids": [WORDS, 16]}),
    "times_former": ("TimesformerForVideoClassification", {**IMAGE, "image_size": 32, "num_frames": 4}, {"pixel_values": [4, 3, 32, 32]}),
    "umt5": ("UMT5ForConditionalGeneration", T5, {"input_ids": [WORDS, 16], "decoder_input_ids": [WORDS, 16]}),
    "video_mae": ("VideoMAEForVideoClassification", VIDEO, {"pixel_values": [4, 3, 32, 32]}),
    "wav2vec": ("Wav2Vec2ForSequenceClassification", {**SOUND, **EAGER}, {"input_values": [800]}),
    "xlm": ("XLMWithLMHeadModel", {"emb_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": WORDS, "max_position_embeddings": 64, "n_words": WORDS},
            {"input_ids": [WORDS, 16]}),
    "zoe_dpt": ("DPTForDepthEstimation", {**IMAGE, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
                                          "neck_hidden_sizes": [16, 16, 16, 16], "fusion_hidden_size": 16, "readout_type": "project", **EAGER},
                {"pixel_values": [3, 64, 64]}),
}
SEGMENTATION = {"deeplabv3_resnet50": 64, "fcn_resnet50": 64}
VIDEOS = ["r3d_18", "mc3_18", "r2plus1d_18"]


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
    for name, (model, config, inputs) in OTHERS.items():
        found[f"other_{name}"] = (lambda model=model, config=config, inputs=inputs:
                                  squares(of_transformers(model, "", config), inputs))
    for name, size in SEGMENTATION.items():
        found[f"pixels_{name}"] = lambda name=name, size=size: of_segmentation(name, size)
    for name in VIDEOS:
        found[f"video_{name}"] = lambda name=name: of_video(name)
    for make in [actor_critic, attention_pool, deep_sets, density_mixture, detector, embedding_bags, generator, graph_attention, hyper_network, maxout,
                 memory_read, neural_field, ode_steps, pixel_shuffle, quantized_codes, ranking, spectral, style_transfer, tagger, tree_gates]:
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
    kind = getattr(transformers, model + ending)
    return kind(kind.config_class(**config, use_cache=False))


def squares(network, inputs, batch=2):
    """The network with the mean square of its first result as loss. The `inputs` are as in OTHERS."""
    import torch

    def sample(name, sizes):
        if name in ("input_ids", "decoder_input_ids", "inputs", "timesteps"):
            return torch.randint(3, sizes[0], (batch, *sizes[1:]))
        return torch.rand(batch, *sizes)

    def loss(net, *values):
        found = net(**dict(zip(inputs, values)), return_dict=False)
        found = found if torch.is_tensor(found) else next(value for value in found if torch.is_tensor(value) and value.is_floating_point())
        return (found * found).mean()

    return with_loss(network, loss), tuple(sample(name, sizes) for name, sizes in inputs.items()), list(inputs)


def of_segmentation(name, size):
    import torch
    import torchvision

    network = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5, aux_loss=False)

    def loss(net, x, y):
        return torch.nn.functional.cross_entropy(net(x)["out"], y)

    return with_loss(network, loss), (torch.rand(2, 3, size, size), torch.zeros(2, size, size, dtype=torch.long)), ["x", "y"]


def of_video(name):
    import torch
    import torchvision

    network = getattr(torchvision.models.video, name)(weights=None, num_classes=10)

    def loss(net, x, y):
        return torch.nn.functional.cross_entropy(net(x), y)

    return with_loss(network, loss), (torch.rand(2, 3, 4, 32, 32), torch.zeros(2, dtype=torch.long)), ["x", "y"]


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


def actor_critic():
    """Policy gradient with an entropy bonus: chosen actions are gathered, ratios clipped."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
            self.policy, self.value = nn.Linear(128, 6), nn.Linear(128, 1)

        def forward(self, x, action, before, gain, worth):
            found = self.body(x)
            chances = nn.functional.log_softmax(self.policy(found), 1)
            ratio = torch.exp(chances.gather(1, action).squeeze(1) - before)
            policy = torch.min(ratio * gain, torch.clamp(ratio, 0.8, 1.2) * gain).mean()
            entropy = (chances.exp() * chances).sum(1).mean()
            return (self.value(found).squeeze(1) - worth).pow(2).mean() - policy + 0.01 * entropy

    return Network(), (torch.rand(64, 32), torch.randint(0, 6, (64, 1)), torch.rand(64), torch.rand(64), torch.rand(64)), [
        "x", "action", "before", "gain", "worth"]


def attention_pool():
    """Several instances in a bag, weighed by a gated attention."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
            self.gate, self.weigh, self.score = nn.Linear(512, 64), nn.Linear(512, 64), nn.Linear(64, 1)
            self.head = nn.Linear(512, 1)

        def forward(self, x, y):
            found = self.encode(x.flatten(0, 1)).flatten(1).reshape(-1, 10, 512)
            weights = torch.softmax(self.score(torch.tanh(self.weigh(found)) * torch.sigmoid(self.gate(found))), 1)
            score = self.head((weights * found).sum(1)).squeeze(1)
            return nn.functional.binary_cross_entropy_with_logits(score, y)

    return Network(), (torch.rand(4, 10, 1, 28, 28), torch.rand(4)), ["x", "y"]


def deep_sets():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.each = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Conv1d(64, 256, 1), nn.BatchNorm1d(256))
            self.all = nn.Sequential(nn.Linear(512, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))

        def forward(self, x, y):
            found = self.each(x)
            found = torch.cat([nn.functional.max_pool1d(found, 128).squeeze(2), found.mean(2)], 1)
            return nn.functional.cross_entropy(self.all(found), y)

    return Network(), (torch.rand(8, 3, 128), torch.zeros(8, dtype=torch.long)), ["x", "y"]


def density_mixture():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.SiLU(), nn.LayerNorm(128))
            self.part, self.mean, self.scale = nn.Linear(128, 5), nn.Linear(128, 5), nn.Linear(128, 5)

        def forward(self, x, y):
            found = self.body(x)
            scale = torch.log(1 + torch.exp(self.scale(found))) + 1e-3
            away = (y - self.mean(found)) / scale
            chance = nn.functional.log_softmax(self.part(found), 1) - 0.5 * away * away - torch.log(scale)
            return -torch.log(torch.exp(chance).sum(1) + 1e-9).mean()

    return Network(), (torch.rand(64, 16), torch.rand(64, 1)), ["x", "y"]


def detector():
    """One stage, two scales, a focal loss and one of boxes."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.low = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU())
            self.high = nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.SiLU())
            self.side, self.up = nn.Conv2d(32, 64, 1), nn.Upsample(scale_factor=2, mode="nearest")
            self.head = nn.Conv2d(64, 8, 3, 1, 1)

        def forward(self, x, y, boxes):
            low = self.low(x)
            high = self.high(low)
            low = self.side(low) + self.up(high)
            found = torch.cat([self.head(part).flatten(2) for part in (low, high)], 2).transpose(1, 2)
            chance = torch.sigmoid(found[..., 4:])
            right = torch.where(y > 0.5, chance, 1 - chance)
            focal = -((1 - right) ** 2 * torch.log(right + 1e-6)).mean()
            return focal + (found[..., :4] - boxes).abs().mean()

    return Network(), (torch.rand(2, 3, 64, 64), torch.rand(2, 320, 4), torch.rand(2, 320, 4)), ["x", "y", "boxes"]


def embedding_bags():
    """Several tables, summed, their products in pairs, and a wide part."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(500 * (i + 1), 16) for i in range(6))
            self.wide = nn.Embedding(3000, 1)
            self.deep = nn.Sequential(nn.Linear(96, 128), nn.LeakyReLU(0.1), nn.Linear(128, 64), nn.SiLU(), nn.Linear(64, 1))

        def forward(self, x, y):
            found = torch.stack([table(x[:, i]).sum(1) for i, table in enumerate(self.tables)], 1)
            total = found.sum(1)
            pairs = 0.5 * (total * total - (found * found).sum(1)).sum(1, keepdim=True)
            score = self.deep(found.flatten(1)) + pairs + self.wide(x[:, 0]).sum(1)
            return nn.functional.binary_cross_entropy_with_logits(score.squeeze(1), y)

    return Network(), (torch.randint(0, 500, (64, 6, 4)), torch.rand(64)), ["x", "y"]


def generator():
    """Images of noise, judged by a critic that is not trained."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.ConvTranspose2d(64, 64, 4), nn.BatchNorm2d(64), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1),
                                     nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh())
            self.critic = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 1, 4, 2, 1)).requires_grad_(False)

        def forward(self, x):
            return torch.log(1 + torch.exp(-self.critic(self.net(x[:, :, None, None])))).mean()

    return Network(), (torch.rand(8, 64),), ["x"]


def graph_attention():
    """Messages along edges, weighed by a softmax over those that arrive at the same node."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 7)
            self.near, self.far = nn.Linear(32, 1), nn.Linear(32, 1)

        def forward(self, x, start, end, y):
            found = self.first(x)
            score = torch.exp(nn.functional.leaky_relu(self.near(found)[start] + self.far(found)[end], 0.2))
            total = torch.zeros_like(found[:, :1]).scatter_add(0, end[:, None], score)
            sent = found[start] * (score / (total[end] + 1e-6))
            found = torch.zeros_like(found).scatter_add(0, end[:, None].expand(-1, 32), sent)
            return nn.functional.cross_entropy(self.second(torch.tanh(found)), y)

    nodes, edges = 40, 200
    return Network(), (torch.rand(nodes, 16), torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,)),
                       torch.zeros(nodes, dtype=torch.long)), ["x", "start", "end", "y"]


def hyper_network():
    """One network makes the weights of another."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 32 * 16 + 16))
            self.last = nn.Linear(16, 1)

        def forward(self, task, x, y):
            made = self.make(task)
            weight, bias = made[:, : 32 * 16].reshape(-1, 16, 32), made[:, 32 * 16 :]
            found = x @ weight.transpose(1, 2) + bias[:, None]
            return (self.last(torch.relu(found)).squeeze(2) - y).abs().mean()

    return Network(), (torch.rand(16, 8), torch.rand(16, 20, 32), torch.rand(16, 20)), ["task", "x", "y"]


def maxout():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64 * 4) for _ in range(3))
            self.last = nn.utils.weight_norm(nn.Linear(64, 10))

        def forward(self, x, y):
            for layer in self.layers:
                x = nn.functional.max_pool1d(layer(x).reshape(-1, 64, 4), 4).squeeze(2)
            return nn.functional.cross_entropy(self.last(x), y)

    return Network(), (torch.rand(64, 64), torch.zeros(64, dtype=torch.long)), ["x", "y"]


def memory_read():
    """A recurrent cell that is unrolled and reads a memory in each step."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.Parameter(torch.rand(32, 24))
            self.cell, self.key, self.last = nn.GRUCell(8 + 24, 48), nn.Linear(48, 24), nn.Linear(48, 8)

        def forward(self, x, y):
            state, read, loss = x.new_zeros(x.shape[0], 48), x.new_zeros(x.shape[0], 24), 0
            for i in range(6):
                state = self.cell(torch.cat([x[:, i], read], 1), state)
                read = torch.softmax(self.key(state) @ self.memory.t(), 1) @ self.memory
                loss = loss + (self.last(state) - y[:, i]).abs().mean()
            return loss

    return Network(), (torch.rand(16, 6, 8), torch.rand(16, 6, 8)), ["x", "y"]


def neural_field():
    """Colours by place, with sines and a positional encoding, added up along rays."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("waves", 2.0 ** torch.arange(6))
            self.register_buffer("before", torch.ones(24, 24).triu())
            self.first, self.second, self.last = nn.Linear(36, 64), nn.Linear(64 + 36, 64), nn.Linear(64, 4)

        def forward(self, x, y):
            waves = (x[..., None] * self.waves).flatten(2)
            place = torch.cat([torch.sin(waves), torch.cos(waves)], 2)
            found = torch.relu(self.first(place))
            found = self.last(torch.sin(30 * self.second(torch.cat([found, place], 2))))
            thick = 1 - torch.exp(-torch.relu(found[..., 3]) * 0.1)
            passed = torch.exp(torch.log(1 - thick + 1e-6) @ self.before)
            colour = ((thick * passed)[..., None] * torch.sigmoid(found[..., :3])).sum(1)
            return nn.functional.mse_loss(colour, y)

    return Network(), (torch.rand(32, 24, 3), torch.rand(32, 3)), ["x", "y"]


def ode_steps():
    """A few steps of Runge and Kutta through one small network."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16))

        def forward(self, x, y):
            for _ in range(4):
                a = self.slope(x)
                b = self.slope(x + 0.125 * a)
                c = self.slope(x + 0.125 * b)
                d = self.slope(x + 0.25 * c)
                x = x + (a + 2 * b + 2 * c + d) * (0.25 / 6)
            return nn.functional.mse_loss(x, y)

    return Network(), (torch.rand(64, 16), torch.rand(64, 16)), ["x", "y"]


def pixel_shuffle():
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 32, 3, padding=1, padding_mode="reflect")
            self.body = nn.ModuleList(nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1), nn.LeakyReLU(0.1), nn.Conv2d(32, 32, 3, 1, 1)) for _ in range(4))
            self.last = nn.Conv2d(32, 12, 3, 1, 1)

        def forward(self, x, y):
            found = self.first(x)
            for layer in self.body:
                found = found + 0.1 * layer(found)
            found = self.last(found).reshape(-1, 3, 2, 2, 32, 32).permute(0, 1, 4, 2, 5, 3).reshape(-1, 3, 64, 64)
            across, down = found[..., 1:] - found[..., :-1], found[:, :, 1:] - found[:, :, :-1]
            return torch.sqrt((found - y) ** 2 + 1e-6).mean() + 0.01 * (across.abs().mean() + down.abs().mean())

    return Network(), (torch.rand(2, 3, 32, 32), torch.rand(2, 3, 64, 64)), ["x", "y"]


def quantized_codes():
    """An autoencoder whose codes are the nearest of a table; gradients go straight through."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(3, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 16, 4, 2, 1))
            self.decode = nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1))
            self.codes = nn.Parameter(torch.rand(64, 16))

        def forward(self, x):
            found = self.encode(x).permute(0, 2, 3, 1)
            flat = found.reshape(-1, 16)
            away = (flat * flat).sum(1, keepdim=True) - 2 * flat @ self.codes.t() + (self.codes * self.codes).sum(1)
            near = self.codes[away.argmin(1)].reshape(found.shape)
            loss = (near - found.detach()).pow(2).mean() + 0.25 * (near.detach() - found).pow(2).mean()
            found = found + (near - found).detach()
            return nn.functional.mse_loss(self.decode(found.permute(0, 3, 1, 2)), x) + loss

    return Network(), (torch.rand(4, 3, 32, 32),), ["x"]


def ranking():
    """Users and things, a margin between what was chosen and what was not, and a regularizer of what was looked up."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.thing = nn.Embedding(200, 32), nn.Embedding(500, 32)
            self.tower = nn.Sequential(nn.Linear(64, 64), nn.ReLU6(), nn.Linear(64, 1))

        def forward(self, user, good, bad):
            user, good, bad = self.user(user), self.thing(good), self.thing(bad)
            length = [torch.sqrt((each * each).sum(1, keepdim=True) + 1e-6) for each in (user, good, bad)]
            score = [self.tower(torch.cat([user, thing], 1)) + (user / length[0] * thing / long).sum(1, keepdim=True)
                     for thing, long in ((good, length[1]), (bad, length[2]))]
            norm = length[0].mean() + length[1].mean()
            return nn.functional.relu(1 - score[0] + score[1]).mean() + 1e-3 * norm

    ids = [torch.randint(0, 200, (64,)) for _ in range(3)]
    return Network(), tuple(ids), ["user", "good", "bad"]


def spectral():
    """Sound through a bank of cosines as a convolution, dilated blocks and a loss of its logarithm."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            bank = torch.cos(torch.arange(64)[None] * (torch.arange(32)[:, None] + 0.5) * 3.14159 / 32)
            self.register_buffer("bank", bank[:, None])
            self.blocks = nn.ModuleList(nn.Sequential(nn.Conv1d(32, 64, 3, padding=2**i, dilation=2**i, groups=4), nn.BatchNorm1d(64),
                                                      nn.GLU(1)) for i in range(3))
            self.last = nn.Linear(32, 10)

        def forward(self, x, y):
            found = torch.log(nn.functional.conv1d(x, self.bank, stride=32).pow(2) + 1e-5)
            for block in self.blocks:
                found = found + block(found)
            found = found.mean(2)
            return nn.functional.cross_entropy(self.last(found), y)

    return Network(), (torch.rand(4, 1, 1024), torch.zeros(4, dtype=torch.long)), ["x", "y"]


def style_transfer():
    """Correlations of channels through a frozen network, as a loss of the image that another one makes."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.ReflectionPad2d(4), nn.Conv2d(3, 16, 9), nn.BatchNorm2d(16), nn.ReLU(),
                                     nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(16, 3, 3, 2, 1))
            self.look = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU()).requires_grad_(False)

        def forward(self, x, style):
            found = self.look(self.net(x)).flatten(2)
            return (found @ found.transpose(1, 2) / found.shape[2] - style).pow(2).mean()

    return Network(), (torch.rand(2, 3, 32, 32), torch.rand(2, 32, 32)), ["x", "style"]


def tagger():
    """Attention and a loss over the places that a mask names."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.shape = nn.Embedding(WORDS, 32, padding_idx=0), nn.Conv1d(32, 32, 3, padding=1)
            self.join, self.norm, self.query, self.value = nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 32)
            self.last = nn.Linear(32, 9)

        def forward(self, x, mask, y):
            found = self.embed(x)
            found = torch.cat([found, self.shape(found.transpose(1, 2)).transpose(1, 2)], 2)
            found = torch.tanh(self.join(found))
            near = self.norm(found)
            weights = torch.softmax(self.query(near) @ near.transpose(1, 2) - 1e4 * (1 - mask[:, None]), 2)
            found = self.last(found + weights @ self.value(near))
            loss = nn.functional.cross_entropy(found.transpose(1, 2), y, reduction="none")
            return (loss * mask).sum() / mask.sum()

    return Network(), (words(), torch.ones(2, 16), torch.zeros(2, 16, dtype=torch.long)), ["x", "mask", "y"]


def tree_gates():
    """A soft decision tree: chances along paths are products of gates."""
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates, self.leaves = nn.Linear(32, 15), nn.Parameter(torch.rand(16, 10))

        def forward(self, x, y):
            gates, chance = torch.sigmoid(self.gates(x)), x.new_ones(x.shape[0], 1)
            for depth in range(4):
                here = gates[:, 2**depth - 1 : 2 ** (depth + 1) - 1]
                chance = torch.stack([chance * here, chance * (1 - here)], 2).flatten(1)
            return nn.functional.cross_entropy(torch.log(chance @ torch.softmax(self.leaves, 1)), y)

    return Network(), (torch.rand(64, 32), torch.zeros(64, dtype=torch.long)), ["x", "y"]


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
