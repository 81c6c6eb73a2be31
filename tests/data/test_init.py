import subprocess
import sys

HEAVY = ("sklearn", "pyarrow", "PIL", "pandas")


def test_optional_packages_are_imported_where_they_are_used():
    code = f"import sys, leanbayes.data; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
