"""Descriptions against samplers whose blocks, families and graphs are known."""

from itertools import combinations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import popgibbs as pg
from models import clusters_sampler
from popgibbs.describing.layout import places

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([-1.0, 0.4, 1.3], np.float32)


def crossed(y):
    """Abilities of persons and difficulties of items: plates that cross."""
    spread = numpyro.sample("spread", dist.Uniform(0.0, 5.0))
    with numpyro.plate("items", y.shape[1], dim=-1):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, spread).expand([y.shape[1]]))
    with numpyro.plate("persons", y.shape[0], dim=-2):
        ability = numpyro.sample("ability", dist.Normal(jnp.zeros((y.shape[0], 1)), 1.0))
        with numpyro.plate("items", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Bernoulli(logits=ability - difficulty), obs=y)


class Walk(pg.StateSpaceModel):
    state, observed = "z", "x"

    def globals(self):
        return numpyro.sample("drift", dist.Normal(0.0, 1.0))

    def initial(self, globals):
        return dist.Normal(globals, 1.0)

    def transition(self, previous, globals):
        return dist.Normal(previous + globals, 1.0)

    def emission(self, state, globals):
        return dist.Normal(state, 1.0)


@pytest.fixture(scope="module")
def mixture() -> pg.Description:
    return clusters_sampler(example={"x": X}).describe()


@pytest.fixture(scope="module")
def items() -> pg.Description:
    y = np.array([[0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]], np.int32)
    return pg.APG(crossed, data={"y": ("persons", "items")}, example={"y": y}).describe()


def test_blocks_say_what_they_see_and_how_their_weight_splits(mixture: pg.Description) -> None:
    sigma, mu, c = mixture.blocks
    assert [block.weight for block in mixture.blocks] == ["whole", "by clusters, assigned by c", "by points"]
    assert [block.given for block in mixture.blocks] == [("mu", "c"), ("sigma", "c"), ("sigma", "mu")]
    assert [str(seen) for block in (sigma, mu, c) for seen in block.children] == [
        "x over points",
        "x over points by c",
        "x",
    ]
    assert [(block.num_elements, block.num_numbers) for block in mixture.blocks] == [(1, 1), (2, 1), (3, 1)]
    assert [block.num_parameters for block in mixture.blocks] == [2, 4, 1]
    assert [block.proposal for block in mixture.blocks] == ["program Width", "program Means", "program Labels"]
    assert mixture.first_draw == "by the blocks, sigma → mu → c"


def test_sites_have_their_family_their_support_and_their_parents(items: pg.Description) -> None:
    found = {site.name: (site.family, site.support, site.parents, site.plates, site.observed) for site in items.sites}
    assert found == {
        "spread": ("Uniform", "0 to 5", (), (), False),
        "difficulty": ("Normal", "real", ("spread",), ("items",), False),
        "ability": ("Normal", "real", (), ("persons",), False),
        "y": ("Bernoulli", "boolean", ("difficulty", "ability"), ("persons", "items"), True),
    }
    assert items.plates == {"items": 4, "persons": 3}
    assert [str(seen) for block in items.blocks for seen in block.children] == [
        "difficulty over items",  # of `spread`, and of its non-centred block
        "difficulty over items",
        "y over persons",
        "y over items",
    ]
    assert "20 temperatures" in items.first_draw


def test_a_sequence_is_described_step_by_step() -> None:
    blocks = [pg.Block("drift"), pg.SequenceBlock("z", proposal=pg.Prior(), move=pg.Metropolis())]
    described = pg.APG(Walk(), data={"x": "time"}, blocks=blocks, example={"x": X}).describe()
    (block,) = (block for block in described.blocks if block.sites == ("z",))
    assert (block.weight, block.num_elements, block.num_numbers) == ("step by step", 3, 1)
    (state,) = (site for site in described.sites if site.name == "z")
    assert (state.family, state.follows_itself) == ("chain of Normal", True)
    assert "s1 --> s1" in described.mermaid


def test_another_sampler_that_draws_first_is_named() -> None:
    first = clusters_sampler(example={"x": X})
    moved = first.with_blocks([pg.Block("sigma", "mu", "c", move=pg.HMC(step_size=0.1))], initial=first)
    moved.check({"x": X})
    described = moved.describe()
    assert described.first_draw == "by another sampler, sigma (program Width) → mu (program Means) → c (program Labels)"
    assert (described.blocks[0].proposal, described.blocks[0].move) == ("none", "HMC, 10 leapfrog steps")


def test_kernels_and_moves_of_users_are_shown_by_class_unless_they_say_more() -> None:
    class Mine(pg.Kernel):
        def bind(self, key, conditional):
            return pg.Prior().bind(key, conditional)

    class Told(Mine):
        @property
        def summary(self) -> str:
            return "the prior again"

    assert Mine().summary == "Mine"
    assert pg.Block("mu", proposal=Told()).proposal.summary == "the prior again"
    assert pg.Metropolis().summary == "Metropolis"


def test_the_table_fits_a_terminal_and_names_every_site(items: pg.Description, mixture: pg.Description) -> None:
    for described in (items, mixture):
        text = str(described)
        assert repr(described) == text
        assert max(map(len, text.splitlines())) <= 116
        assert all(site.name in text for site in described.sites)
        html = described._repr_html_()
        assert html.count("<tr>") == 1 + len(described.blocks)
        assert "</svg>" in html


def test_the_flowchart_nests_plates_and_separates_those_that_cross(items: pg.Description) -> None:
    text = items.mermaid
    assert 'subgraph g3["items 4 × persons 3"]' in text
    assert text.count("subgraph") == text.count("end\n") == 3
    assert "s0 --> s1" in text


def test_in_the_layout_parents_are_above_children_and_boxes_hold_only_their_own_nodes() -> None:
    names = ["pi", "tau", "mu", "c", "x", "slope", "y"]
    edges = [
        ("pi", "c"),
        ("tau", "mu"),
        ("mu", "x"),
        ("tau", "x"),
        ("c", "x"),
        ("mu", "slope"),
        ("slope", "y"),
        ("x", "y"),
    ]
    members = {"clusters": ["tau", "mu"], "points": ["c", "x", "y"], "groups": ["slope", "y"]}
    place = dict(zip(names, places(names, edges, members), strict=True))
    assert all(place[a][1] < place[b][1] for a, b in edges)
    assert all(np.any(np.abs(place[a] - place[b]) >= 1) for a, b in combinations(names, 2))
    for inside in members.values():
        corner = np.array([place[name] for name in inside])
        outside = [place[name] for name in names if name not in inside]
        assert not any(np.all((corner.min(axis=0) <= at) & (at <= corner.max(axis=0))) for at in outside)


def test_the_figure_has_a_node_for_every_site_and_a_box_for_every_plate(items: pg.Description) -> None:
    (axes,) = items.figure().axes
    texts = [text.get_text() for text in axes.texts]
    assert set(texts) == {"spread", "difficulty", "ability", "y", "items · 4", "persons · 3"}


def test_a_sampler_that_has_seen_nothing_cannot_be_described() -> None:
    with pytest.raises(ValueError, match="has not seen an instance"):
        clusters_sampler().describe()
