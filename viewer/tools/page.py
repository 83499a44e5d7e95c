#!/usr/bin/env python3
"""Opens a page in headless Chromium, waits until what it shows stands still, and keeps a picture of it. Fails where the
page shows nothing, or says that the viewer did not start.

    apt-get install chromium chromium-driver
    python3 -m http.server -d target/web &
    python3 viewer/tools/page.py 'http://localhost:8000/?fused.json' target/page.png
"""

import argparse
import pathlib
import shutil
import sys
import time

from readers import Browser

# WebGPU on a software adapter
FLAGS = [
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan",
    "--use-webgpu-adapter=swiftshader",
    "--use-vulkan=swiftshader",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-gpu-sandbox",
    "--disable-gpu-watchdog",
]
# a page of one colour is smaller
LEAST_BYTES = 20_000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=120, help="how long to wait at most")
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--driver", default=shutil.which("chromedriver") or "chromedriver")
    args = parser.parse_args()
    browser = Browser(args.chromium, args.driver, FLAGS)
    try:
        browser.open(args.address)
        until = time.monotonic() + args.seconds
        before = b""
        while time.monotonic() < until:
            time.sleep(2)
            browser.picture(args.picture)
            now = args.picture.read_bytes()
            if now == before and len(now) > LEAST_BYTES:
                break
            before = now
        said = browser.run("arguments[0](document.body.innerText.trim());")
        if said:
            sys.exit(said)
        if len(before) <= LEAST_BYTES:
            sys.exit(f"{args.address} shows nothing")
        print(f"{args.address} is in {args.picture}")
    finally:
        browser.close()


if __name__ == "__main__":
    main()
