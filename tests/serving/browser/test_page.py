"""The page of a server in a real browser, clicked through with a tiny model of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looking import PHONE, WIDE
from running import Running, running

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"
ANSWER = "#panel .answer .output"
KINDS = {
    "fill-mask": "language",
    "embed": "language",
    "similarity": "language",
    "ner": "entities",
    "qa": "questions",
    "zero-shot": "inference",
    "classify": "inference",
    "rerank": "relevance",
}


def open_kind(page: Any, kind: str, size: tuple[int, int] = WIDE) -> None:
    page.open(f"/#{KINDS[kind]}/{kind}", size)
    page.wait("document.querySelector('[role=tab][aria-selected=true]')?.dataset.kind === arguments[0]", kind)


def ask(page: Any) -> None:
    page.click("#panel button.main")
    page.wait("document.querySelector('#code:not([hidden])') && !document.querySelector('[aria-busy]')")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_every_kind_answers_and_fits(page: Any, kind: str, size: tuple[int, int]) -> None:
    open_kind(page, kind, size)
    ask(page)
    assert not page.find_all("#panel .notice.bad")
    assert page.find_all(f"{ANSWER} .bars li, {ANSWER} .heat, {ANSWER} .map, {ANSWER} .marked, {ANSWER} .measure")
    curl, python = (one.text for one in page.find_all("#code pre"))
    assert curl.startswith(f"curl '{page.url}/")
    assert f'mw.pipeline("{"classify" if kind == "rerank" else kind}"' in python
    page.check_fits()
    page.check_nothing_failed()


def test_words_are_masked_by_click_and_key_and_filled_by_choice(page: Any, server: Running) -> None:
    open_kind(page, "fill-mask")
    page.write("#panel textarea", "the cat sees 🐱 a long road.")
    page.wait("document.querySelectorAll('.word').length === 6")
    words = page.find_all(".word")
    assert [word.text for word in words] == ["the", "cat", "sees", "a", "long", "road"]
    words[1].click()
    page.wait("document.querySelector('.mask-answer h3')?.innerText.includes('cat')")
    page.run("document.querySelectorAll('.word')[4].focus()")
    page.press("\ue007")
    page.wait("document.querySelectorAll('.mask-answer').length === 2")
    answer = server.ask("/fill-mask", inputs="the [MASK] sees 🐱 a [MASK] road.", top_k=8)
    first = page.find(".mask-answer .bar-label").text
    assert first == answer[0][0]["token_str"].strip()
    page.click(".mask-answer button.bar")
    page.wait("document.querySelectorAll('.mask-answer').length === 1")
    assert page.run("return document.querySelector('#panel textarea').value").startswith(f"the {first} sees 🐱 a ")


def test_entities_stand_where_the_server_says_behind_emoji_too(page: Any, server: Running) -> None:
    text = "👩‍🚀🚀 my old teacher sees 🏠 the green house\nevery student"
    entities = server.ask("/ner", inputs=text, aggregation="first")
    assert entities
    open_kind(page, "ner")
    page.write("#panel textarea", text)
    ask(page)
    marked = page.run("""return [...document.querySelectorAll('.marked mark')].map((mark) => mark.firstChild.data)""")
    assert "".join(marked) == "".join(text[one["start"] : one["end"]] for one in entities)
    shown = page.run("""
        const copy = document.querySelector('.marked').cloneNode(true);
        copy.querySelectorAll('.tag').forEach((tag) => tag.remove());
        return copy.textContent""")
    assert shown == text
    group = page.find(".answer .chip")
    group.click()
    assert group.get_attribute("aria-pressed") == "false"
    assert page.find_all(".marked mark.plain")


def test_spans_that_overlap_are_cut_into_pieces(page: Any) -> None:
    page.open("/")
    spans = [{"start": 1, "end": 4}, {"start": 3, "end": 6}]
    pieces = page.call("text.js", "m.cutAtSpans(v[0], v[1])", "a😀bcdef", spans)
    assert [(piece["text"], piece["spans"]) for piece in pieces] == [
        ("a", []),
        ("😀b", [0]),
        ("c", [0, 1]),
        ("de", [1]),
        ("f", []),
    ]
    assert page.call("text.js", "m.sliceCodePoints(v[0], 1, 3)", "😀é😀x") == "é😀"
    beyond = page.call("text.js", "m.cutAtSpans(v[0], v[1])", "ab", [{"start": -5, "end": 99}])
    assert [piece["text"] for piece in beyond] == ["ab"]


def test_the_answer_of_a_question_is_marked_in_its_context(page: Any, server: Running) -> None:
    open_kind(page, "qa")
    question, context = "who sees?", "🐦 one red bird sees the green house."
    page.write("#panel input[type=text]", question)
    page.write("#panel textarea", context)
    ask(page)
    replies = server.ask("/qa", inputs={"question": question, "context": context}, top_k=3)
    assert page.text(".marked mark") == replies[0]["answer"]
    page.find_all(".answer button.bar")[1].click()
    assert page.text(".marked mark") == replies[1]["answer"]


def test_labels_are_added_and_removed_by_keys(page: Any) -> None:
    open_kind(page, "zero-shot")
    entry = page.find("#panel input[placeholder^='add a label']")
    entry.send_keys("animals\ue007")
    names = "[...document.querySelectorAll('.chips .chip')].map((chip) => chip.firstChild.data)"
    assert page.run(f"return {names}")[-1] == "animals"
    entry.send_keys("\ue003")
    assert "animals" not in page.run(f"return {names}")
    ask(page)
    assert len(page.find_all(".answer .bars li")) == len(page.find_all(".ask .chip"))


def test_a_pair_is_classified_and_every_class_has_its_bar(page: Any, server: Running) -> None:
    open_kind(page, "classify")
    page.write("#panel textarea", "the cat sees the road")
    page.click("#panel details summary")
    page.write("#panel details textarea", "a small dog likes it")
    ask(page)
    (expected,) = server.ask(
        "/classify", inputs=[["the cat sees the road", "a small dog likes it"]], top_k=None, model="inference"
    )
    assert [one.text for one in page.find_all(".answer .bar-label")] == [one["label"] for one in expected]
    assert "calibrat" in page.text(".answer .note")


def test_measures_are_put_in_order_and_not_called_percent(page: Any, server: Running) -> None:
    open_kind(page, "rerank")
    texts = ["the cat sees the road", "a small dog likes it", "one red bird"]
    page.write("#panel textarea", "\n".join(texts))
    ask(page)
    query = page.run("return document.querySelector('#panel input[type=text]').value")
    pairs = [[query, text] for text in texts]
    scores = [one["score"] for one in server.ask("/classify", inputs=pairs, model="relevance")]
    assert not all(0 <= score <= 1 for score in scores)
    ordered = sorted(texts, key=lambda text: -scores[texts.index(text)])
    assert [one.text for one in page.find_all(".answer .bar-label")] == ordered
    assert not any("%" in one.text for one in page.find_all(".answer .bar-value"))


def test_the_heat_map_is_a_table_that_keys_step_through(page: Any, server: Running) -> None:
    open_kind(page, "similarity")
    lines = ["the cat sees the road", "a small dog likes it", "every student remembers"]
    page.write("#panel textarea", "\n".join(lines))
    ask(page)
    rows = "[...document.querySelectorAll('.heat tbody tr')]"
    cells = page.run(f"return {rows}.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.innerText))")
    score = server.ask("/api/similarity", inputs=[[lines[0], lines[2]]])[0]["score"]
    assert cells[0][2] == cells[2][0] == f"{score:.2f}"
    page.run("document.querySelector('.heat td[tabindex=\"0\"]').focus()")
    page.press("\ue014")
    page.wait("document.activeElement.dataset.place === '0,1'")
    assert lines[1] in page.text(".focus")


def test_neighbours_are_found_in_a_file_that_is_read_in_the_browser(page: Any, server: Running, tmp_path: Path) -> None:
    texts = [f"the cat sees {number} roads" for number in range(150)] + ["one red bird"]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    open_kind(page, "embed")
    page.find("input[type=file]").send_keys(str(tmp_path / "texts.txt"))
    page.run("document.querySelectorAll('#panel form')[1].querySelector('input[type=text]').value = 'one red bird'")
    page.run("document.querySelectorAll('#panel form')[1].requestSubmit()")
    page.wait("document.querySelector('.bars.wide .bar-value')")
    assert page.text(".bars.wide .bar-label") == "one red bird"
    assert page.text(".bars.wide .bar-value") == "1.000"
    assert len(page.find_all(".bars.wide li")) == 10


def test_the_plane_is_that_of_the_principal_components(page: Any) -> None:
    points = np.random.default_rng(0).normal(size=(20, 6)) * [9.0, 5.0, 1.0, 1.0, 0.5, 0.1]
    centred = points - points.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    page.open("/")
    found = page.call("vectors.js", "m.projectToPlane(v[0])", points.tolist())
    assert found["shares"] == pytest.approx((sizes**2 / (sizes**2).sum())[:2].tolist(), rel=1e-4)
    for axis in range(2):
        expected, shown = left[:, axis] * sizes[axis], np.array(found["points"])[:, axis]
        assert min(np.abs(shown - expected).max(), np.abs(shown + expected).max()) < 1e-2
    same = page.call("vectors.js", "m.projectToPlane(v[0])", [[1, 2, 3]] * 4)
    assert same["points"] == [[0, 0]] * 4
    assert page.call("vectors.js", "m.cosine([0, 0], [1, 1])") == 0


def test_markup_of_people_stays_text(page: Any) -> None:
    for kind in ("fill-mask", "ner", "classify", "similarity"):
        open_kind(page, kind)
        page.write("#panel textarea", f"{HOSTILE} [MASK] the cat\n{HOSTILE}")
        page.wait("document.querySelector('#panel button.main')")
        page.run("document.querySelector('#panel form').requestSubmit()")
        page.wait("!document.querySelector('[aria-busy]') && document.querySelector('#code:not([hidden])')")
        assert page.run("return [document.title, document.querySelectorAll('img[src=x]').length]") == ["Maskwright", 0]
        assert "onerror" in page.text("#code pre")


def test_tabs_move_with_the_arrow_keys_and_links_lead_to_kinds(page: Any) -> None:
    open_kind(page, "fill-mask")
    page.run("document.querySelector('[role=tab][aria-selected=true]').focus()")
    page.press("\ue014")
    kind = page.run("return document.activeElement.dataset.kind")
    assert kind != "fill-mask"
    assert page.run("return document.activeElement.getAttribute('aria-selected')") == "true"
    assert page.run("return location.hash") == f"#language/{kind}"
    page.run("location.hash = '#questions/qa'")
    page.wait("document.querySelector('#model').value === 'questions' && document.querySelector('#tab-qa')")


def test_everything_is_reached_by_the_keyboard_alone(page: Any) -> None:
    open_kind(page, "fill-mask")
    page.wait("document.querySelector('.mask-answer button')")
    page.run("document.activeElement.blur()")
    reached: list[str] = []
    for _ in range(45):
        page.press("\ue004")
        reached.append(
            page.run("const e = document.activeElement; return e.id || e.className || e.tagName.toLowerCase()")
        )
    for part in ("skip", "theme", "model", "tab-fill-mask", "word", "main", "bar", "quiet small"):
        assert part in reached, reached


def test_errors_are_said_in_words(page: Any, model_folders: dict[str, Path]) -> None:
    with running([model_folders["language"]], max_texts=2) as one:
        page.url = one.url
        page.open("/#language/embed")
        page.click("#panel button.main")
        assert "texts, and 2 are allowed" in page.text("#panel .notice.bad")
        page.write("#panel textarea", "")
        page.click("#panel button.main")
        page.wait("document.querySelector('#panel .notice.bad')?.innerText.startsWith('Three texts')")
        page.driver.get_log("browser")
    page.write("#panel textarea", "a\nb\nc")
    page.click("#panel button.main")
    page.wait("document.querySelector('#panel .notice.bad')?.innerText.includes('does not answer')")


def test_a_key_is_asked_for_and_used(page: Any, model_folders: dict[str, Path]) -> None:
    with running([model_folders["language"]], api_key="a-secret") as one:
        page.url = one.url
        page.open("/")
        page.wait("!document.querySelector('#key-form').hidden")
        page.find("#key").send_keys("a-secret\ue007")
        page.wait("document.querySelector('.mask-answer .bar')")
        assert "a-secret" not in page.text("#code")
        assert "MASKWRIGHT_API_KEY" in page.text("#code pre")
        page.run("sessionStorage.clear()")
        page.driver.get("about:blank")


def test_colours_follow_the_system_until_one_chooses(page: Any) -> None:
    def read_paper() -> str:
        return str(page.run("return getComputedStyle(document.body).backgroundColor"))

    page.open("/")
    light = read_paper()
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        dark = read_paper()
        assert dark != light
        page.click("#theme")
        assert read_paper() == light
        page.open("/")
        assert read_paper() == light
        page.click("#theme")
        assert read_paper() == dark
    finally:
        page.run("localStorage.clear()")
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_figures_of_the_server_are_live(page: Any) -> None:
    open_kind(page, "fill-mask")
    page.wait("document.querySelectorAll('#stats div').length === 8")
    row = "[...document.querySelectorAll('#stats div')].find((one) => one.innerText.startsWith('answered'))"
    answered = f"Number({row}.querySelector('dd').innerText)"
    before = page.run(f"return {answered}")
    ask(page)
    page.wait(f"{answered} > arguments[0]", before)
