"""Switching the policy on the planner's page: what it would do, the one button, refusals."""

from dataclasses import replace

import pytest
from playwright.async_api import expect

from tests.integration.planner.streams import TOKEN
from tests.support.browser import Chromium
from tests.support.planner_page import REFUSED, cell, policy_of, ready, stage, url

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]
TAKEN = ("status of 409",)


async def test_a_policy_is_switched_only_by_the_button_that_says_so(chromium: Chromium) -> None:
    async with stage() as (process, _), chromium.tab(url(process), expected=REFUSED) as tab:
        page, dialog = tab.page, tab.page.locator("#policy-dialog")
        await ready(page)
        await page.get_by_role("button", name="Change policy…").click()
        await expect(dialog.get_by_role("button", name="Keep two_stage")).to_be_visible()
        await expect(dialog.locator("#confirm")).to_be_disabled()
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("3")
        await dialog.get_by_label("Planner's token").fill("wrong")
        await dialog.get_by_role("button", name="Use key").click()
        await expect(dialog.get_by_text("does not take this key")).to_be_visible()
        await dialog.get_by_label("Planner's token").fill(TOKEN)
        await dialog.get_by_role("button", name="Use key").click()
        await expect(dialog.locator("#preview tbody tr")).to_have_count(2)
        await expect(dialog.locator("#preview")).to_contain_text("at once on 1 worker of demo")
        await tab.shoot("planner-policy")
        assert await tab.barriers() == []
        assert policy_of(process) == ("two_stage", 0), "nothing was confirmed"
        await dialog.get_by_role("button", name="Keep two_stage").click()
        await expect(dialog).to_be_hidden()
        assert policy_of(process) == ("two_stage", 0)
        await page.get_by_role("button", name="Change policy…").click()
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("3")
        await dialog.get_by_role("button", name="Switch to static:3").click()
        await expect(dialog).to_be_hidden()
        await expect(page.locator("#policy")).to_have_text("static:3")
        assert policy_of(process) == ("static:3", 1)
        await expect(page.locator("#announce")).to_contain_text("demo is planned by static:3 now")
        await expect(page.locator(cell(page, 64, 3))).to_have_class("planned")
        await expect(page.locator("#why-note")).to_contain_text("fixed by the policy static:3")


async def test_what_the_planner_refuses_is_told_and_changes_nothing(chromium: Chromium) -> None:
    refused = ("status of 400",)
    async with (
        stage(token=None) as (process, _),
        chromium.tab(url(process), expected=refused) as tab,
    ):
        page, dialog = tab.page, tab.page.locator("#policy-dialog")
        await ready(page)
        await page.get_by_role("button", name="Change policy…").click()
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("many")
        await expect(dialog.locator("#preview")).to_contain_text("needs a draft length of 0…64")
        await dialog.get_by_role("button", name="Switch to static:many").click()
        await expect(dialog.locator("#dialog-error")).to_contain_text("known are two_stage")
        assert policy_of(process) == ("two_stage", 0)
        await page.keyboard.press("Escape")
        await expect(dialog).to_be_hidden()


async def test_somebody_else_s_switch_is_shown_before_another_try(chromium: Chromium) -> None:
    async with stage(token=None) as (process, _), chromium.tab(url(process), expected=TAKEN) as tab:
        page, dialog = tab.page, tab.page.locator("#policy-dialog")
        await ready(page)
        await page.get_by_role("button", name="Change policy…").click()
        await expect(dialog.get_by_role("button", name="Keep two_stage")).to_be_visible()
        default = process.service.planner.settings.of("demo").settings
        process.service.put_settings("demo", replace(default, policy="static:2"))
        await dialog.get_by_label("Policy", exact=True).select_option(label="static")
        await dialog.get_by_label("Argument").fill("3")
        await dialog.get_by_role("button", name="Switch to static:3").click()
        await expect(dialog.locator("#dialog-error")).to_contain_text("static:2 is in force now")
        await expect(dialog.get_by_role("button", name="Keep static:2")).to_be_visible()
        assert policy_of(process) == ("static:2", 1)
        await tab.shoot("planner-policy-conflict")
        assert await tab.barriers() == []
        await dialog.get_by_role("button", name="Switch to static:3").click()
        await expect(dialog).to_be_hidden()
        assert policy_of(process) == ("static:3", 2)
