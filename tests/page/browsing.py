"""Actions of a person on the page: open a view, fill in fields, press buttons, read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
    WebDriverException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

PATIENCE_S = 20.0
_POLL_S = 0.05
_FILL = """
const [field, text] = arguments;
const options = [...(field.options ?? [])];
if (options.length && !options.some((option) => option.value === text)) throw new Error("no such option");
Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(field, text);
for (const name of ["input", "change"]) field.dispatchEvent(new Event(name, {bubbles: true}));
"""
_KEEPS_ITS_PLACE = """
const [element, done] = arguments;
const place = () => JSON.stringify(element.getBoundingClientRect());
const before = place();
requestAnimationFrame(() => requestAnimationFrame(() => done(place() === before)));
"""
_NOT_YET = (ElementClickInterceptedException, ElementNotInteractableException, StaleElementReferenceException)


class Page:
    """The management page in a browser."""

    def __init__(self, browser: Chrome, address: str) -> None:
        self.browser = browser
        self.address = address

    # Going

    def start(self) -> None:
        self.browser.get(self.address)

    def open(self, place: str) -> None:
        """Show the view with this address, which begins behind `#/`."""
        self.browser.get(f"{self.address}#/{place}")

    @property
    def place(self) -> str:
        return self.browser.current_url.partition("#/")[2]

    # Looking

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """Return the visible text; "" if no element matches."""
        try:
            return "\n".join(element.text for element in self.all(selector))
        except StaleElementReferenceException:
            return ""

    def rows(self, label: str) -> list[list[str]]:
        """The cells of a table."""
        read = """return [...document.querySelectorAll(`table[aria-label="${arguments[0]}"] tbody tr`)]
            .map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"""
        return self.browser.execute_script(read, label)

    def until(self, is_so: Callable[[], object], event: str = "") -> None:
        """Wait until a condition is true. Raises AssertionError with the visible text.

        A condition that reads a row, a figure or an element which the page has yet to draw is not yet true.
        """

        def is_so_now() -> bool:
            try:
                return bool(is_so())
            except (LookupError, StaleElementReferenceException):
                return False

        deadline = time.monotonic() + PATIENCE_S
        while not is_so_now():
            if time.monotonic() > deadline:
                shown = self.text("body")
                raise AssertionError(
                    f"not so within {PATIENCE_S:g} s: {event or is_so}; there is:\n{shown[:3000]}"
                )
            time.sleep(_POLL_S)

    def until_reads(self, text: str, selector: str = "main") -> None:
        self.until(lambda: text in self.text(selector), f"{text!r} in {selector}")

    # Doing

    def click(self, selector: str) -> None:
        """Click on an element that keeps its place, because the driver clicks on a point."""

        def act() -> bool:
            try:
                elements = self.all(selector)
                if not elements or not self.browser.execute_async_script(_KEEPS_ITS_PLACE, elements[0]):
                    return False
                elements[0].click()
            except _NOT_YET:
                return False
            return True

        self.until(act, f"a click on {selector}")

    def press(self, name: str, within: str = "main") -> None:
        """Press the button of this name."""
        self.click(f'{within} button[name="{name}"]')

    def fill(self, within: str = "dialog", **fields: str) -> None:
        for name, text in fields.items():
            selector = f'{within} [name="{name}"]'
            self.until(lambda selector=selector: self.all(selector), selector)
            # A driver types only characters of the basic plane, and a list of choices may cover the field.
            self.browser.execute_script(_FILL, self.all(selector)[0], text)

    def search(self, text: str) -> None:
        """Type a text into the search field of the view."""
        self.until(lambda: self.all('main .search input[type="search"]'), "a search field")
        self.browser.execute_script(_FILL, self.all('main .search input[type="search"]')[0], text)

    def confirm(self, **fields: str) -> None:
        """Fill in the open dialog, and confirm it."""
        self.fill(**fields)
        self.press("confirm", "dialog")
        self.until(lambda: not self.all("dialog"), "the dialog is gone")

    def key(self, *keys: str) -> None:
        for each in keys:
            self.browser.switch_to.active_element.send_keys(each)

    def leave_field(self) -> None:
        self.key(Keys.ESCAPE)

    def log_in(self, user: str, password: str) -> None:
        self.fill("main", username=user, password=password)
        self.press("login")

    def console_errors(self) -> list[str]:
        """Return the errors in the browser's console, without answers that are no success."""
        try:
            log = self.browser.get_log("browser")
        except WebDriverException:
            return []
        return [each["message"] for each in log if "Failed to load resource" not in each["message"]]
