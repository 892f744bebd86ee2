"""Opens the page that `ckpt-opt --report page.html` wrote in a browser without a window, and fails where it reports an error, asks for anything
else, or does not show what is there at the peak:

    python3 tools/check_page.py page.html [--browser chromium] [--screenshot page.png]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def run(browser, page, *options):
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                   "--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", *options, f"file://{os.path.abspath(page)}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def faults(page, dom, console):
    """What is wrong with the page, a sentence each."""
    found = [f"the browser says: {line}" for line in console]
    # Names of formats are not asked for.
    asked = re.findall(r"""(?:src|href)=["']([^"'#][^"']*)|url\(([^)]+)\)|@import""", page)
    found += [f"it asks for {one[0] or one[1] or 'a style'}" for one in asked]
    if not re.search(r"<p>after, step \d+ of \d+ ", dom):
        found.append("it does not show what is there at the peak")
    if not re.search(r'<line id="cursor" [^>]*x1="', dom):
        found.append("it does not mark the peak")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("page")
    parser.add_argument("--browser", default=next(filter(shutil.which, BROWSERS), None))
    parser.add_argument("--screenshot")
    arguments = parser.parse_args()
    if arguments.browser is None:
        sys.exit(f"expected a browser, one of {', '.join(BROWSERS)}: sh tools/setup.sh browser")
    with open(arguments.page, encoding="utf-8") as file:
        page = file.read()
    dom, console = run(arguments.browser, arguments.page, "--dump-dom")
    if arguments.screenshot:
        run(arguments.browser, arguments.page, f"--screenshot={os.path.abspath(arguments.screenshot)}", "--window-size=1200,2400")
    found = faults(page, dom, console)
    for fault in found:
        print(f"{arguments.page}: {fault}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
