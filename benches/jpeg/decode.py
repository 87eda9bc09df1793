"""Images a second of one core by libjpeg-turbo, on files in memory: the yardstick of
`cargo bench -p yolov9-data --bench decode`.

    pip install numpy Pillow simplejpeg opencv-python-headless
    python3 benches/jpeg/decode.py FOLDER [COUNT]

Each of the three packages brings a libjpeg-turbo of its own, with its SIMD code. simplejpeg calls it with nothing
around it; `fastdct` and `fastupsample` give other pixels and are off.
"""

import io
import pathlib
import sys
import time

import cv2
import numpy as np
import simplejpeg
from PIL import Image, features

REPEATS = 5


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 256
    files = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))[:count]]
    volume = sum(map(len, files))
    print(f"{len(files)} files, {volume / len(files) / 1e3:.1f} kB each")
    print(f"Pillow {Image.__version__}: libjpeg-turbo {features.version_feature('libjpeg_turbo')}; OpenCV {cv2.__version__}")
    cv2.setNumThreads(1)
    decoders = {
        "simplejpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB", fastdct=False, fastupsample=False),
        "OpenCV (BGR)": lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR),
        "Pillow": lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
    }
    for name, decode in decoders.items():
        fastest = float("inf")
        for _ in range(REPEATS):
            start = time.perf_counter()
            for data in files:
                decode(data)
            fastest = min(fastest, time.perf_counter() - start)
        each = fastest / len(files)
        print(f"{name:<16} {each * 1e3:8.3f} ms  {1 / each:9.1f} images/s  {volume / fastest / 1e6:8.1f} MB/s of JPEG")


if __name__ == "__main__":
    main()
