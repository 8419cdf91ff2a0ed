"""Names that no list holds: composed of ordinary words, or taken from the class of what they name.

Whoever writes a kernel must repeat the names of parameters and constructor arguments letter by letter. A model that has
seen a few pools of names recites them; one that has seen names of all kinds copies.
"""

from __future__ import annotations

import random
import re


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# What the kernels mean something else by: a scalar that is passed to one must not be called so.
RESERVED = frozenset(
    _words("""
x y z w v n i j k m s t c p b h r out D M N K C G row rows col base inner half weight bias top left sum part
lane first start step size query key head index index_of length channel total limit low high count H W L O T B
OH OW OD OL OC ON KD KH KW SD SH SW PD PH PW DD DH DW QD QH QW XC mean var best sizes blocks grid spatial plane
scale_by dims numel pooled groups warp before
""")
)
_NOUNS = _words("""
account action address agent alarm album anchor angle answer area array atom author average axis band bank barrel batch
beam bell bird block board body bolt border bottle bound box branch brick bridge bucket buffer bundle button cache cable
camera canvas carbon card cargo cell center chain chamber channel charge chart circle city class cloud cluster coast
code coin color column comet copper core corner counter coupling cover crane crop crystal cube curve cycle damping
data deck degree delta density depth desk detail device dial digit distance dome door draft drift drum dust echo edge
element ember energy engine entry epoch event expert factor fan feature fiber field figure filter finger flag flame
floor flow flux focus folder forest fork frame frequency friction fuel gamma garden gate gear glass grain graph gravity
group guard guide hammer hand harbor heat hidden hill hinge hook horizon hour house image impact inlet item joint
kernel knot label ladder lake lamp latent layer leaf ledger lens letter lever lift light line link load lobe lock loop
machine magnet map margin marker mass matrix medal memory mesh message meter mirror model module moment motor mount
nest network node noise note number object ocean offset orbit order organ outlet packet page paint panel paper patch
path pattern peak pedal period phase photo pilot pin pipe pixel planet plate plug point pole port power press price
prism probe profile pulse pump quota radius rail range rate ratio region relay reward ring river road robot rod root
rope sample scale scene score screen seal seat section seed segment sensor series shade shaft shape shell shelf shift
signal silver slope slot socket solar sound source space span spark speed sphere spring stack stage star state station
stem stone storm stream street string strip style subject supply surface switch symbol system table tail tank target
task temple tensor term text thread tick tile time token tone tool torque tower trace track trail transfer
travel tray tree trend tunnel turbine unit user valley value valve vector vessel video view voice volume wagon wall
water wave weather wheel wind window wing wire word world yard zone
""")
_QUALIFIERS = _words("""
active all alpha base basic beta big bottom coarse cold common cross current deep dense direct double dry dual early
extra fast final fine first fixed flat fresh full global gross half hard heavy high hot initial inner input inverse
joint large last late left light linear local long low main major max mean mid min minor net new next noisy normal num
old open outer output partial past pre prev primary prior pure quick rare raw real rear right rough second sharp
short silent simple single slow small smooth soft sparse spare static steady sub third tiny top total true unit upper
warm weak wide
""")
_SHORT = _words(
    "n num sz len dim ch feat proj src dst buf val cur prev nxt lin emb cfg ctx seq tok hid inp outp ker wgt"
)
# What a single word must not be: a method of nn.Module, a keyword or a type of either language, a name of the file.
_TAKEN = frozenset(
    _words("all half double float train class switch min max static new module modules string short long register")
)
_LETTERS = "abcdefgpqruvw"
_PARTS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def composed(rng: random.Random) -> str:
    """A name such as `wheel`, `tiny_wheel`, `num_outer_wheels`, `wheelCount` or `u3`."""
    noun = rng.choice(_NOUNS)
    form = rng.choices(
        ("one", "two", "nouns", "three", "short", "camel", "letter", "number"), (2, 5, 4, 2, 3, 1, 1, 2)
    )[0]
    match form:
        case "one":
            return noun if noun not in _TAKEN and len(noun) > 3 else f"{noun}_in"
        case "two":
            return f"{rng.choice(_QUALIFIERS)}_{noun}"
        case "nouns":
            return f"{rng.choice(_NOUNS)}_{noun}"
        case "three":
            return f"{rng.choice(_QUALIFIERS)}_{rng.choice(_NOUNS)}_{noun}"
        case "short":
            return "_".join(rng.sample((rng.choice(_SHORT), noun), 2))
        case "camel":
            return f"{rng.choice(_NOUNS)}{noun.capitalize()}"
        case "letter":
            return f"{rng.choice(_LETTERS)}{rng.choice(('_', ''))}{rng.randint(1, 9)}"
    return f"{noun}{rng.choice(('', '_'))}{rng.randint(1, 12)}"


def after_class(rng: random.Random, expression: str) -> str:
    """A name for `nn.Name(...)` from the name of its class, `conv2d`, `batch_norm` or `bn1`; empty for others."""
    name = re.match(r"nn\.([A-Z]\w+)\(", expression)
    if not name or name[1] in ("Parameter", "Sequential", "ModuleList"):
        return ""
    whole = _PARTS.sub("_", re.sub(r"LU(?=\d|$)", "lu", name[1])).lower()
    bare = re.sub(r"\d+d$", "", whole)
    forms = [whole, bare, bare, bare.replace("_", ""), *_CUSTOMARY.get(bare, ())]
    return f"{rng.choice(forms)}{rng.choices(('', '1', '2', '3', '_layer'), (12, 2, 1, 0.5, 1.5))[0]}"


_CUSTOMARY: dict[str, tuple[str, ...]] = {
    "conv_transpose": ("deconv", "up", "upconv", "tconv", "conv_t"),
    "conv": ("cnn", "features", "stem", "conv_in"),
    "linear": ("fc", "fc", "dense", "proj", "out_proj", "head", "classifier", "w1", "w2", "w3", "lin", "matmul", "gemm")
    + ("gate_proj", "up_proj", "down_proj", "c_fc", "c_proj", "q_proj", "k_proj", "v_proj", "mlp", "to_out", "ff"),
    "batch_norm": ("bn", "bn", "norm"),
    "group_norm": ("gn", "gn", "norm"),
    "instance_norm": ("inorm", "norm"),
    "layer_norm": ("ln", "ln", "norm", "ln_f"),
    "max_pool": ("pool", "mp", "down"),
    "avg_pool": ("pool", "ap", "down"),
    "adaptive_avg_pool": ("gap", "avgpool", "squeeze", "global_pool"),
}
