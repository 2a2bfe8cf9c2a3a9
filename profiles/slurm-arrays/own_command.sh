# Every job sources this first. All tasks of an array start with the command of its first task. Here the other tasks
# switch to their own command, which the plugin packs into the script ($0).
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ] && [ "$SLURM_ARRAY_TASK_ID" != "$SLURM_ARRAY_TASK_MIN" ] &&
    [ -z "${DPCANARY_OWN_COMMAND:-}" ]; then
    DPCANARY_OWN_COMMAND=$(python3 - "$0" "$SLURM_ARRAY_TASK_ID" <<'PYTHON'
import base64, json, re, sys, zlib
from pathlib import Path

script, task = Path(sys.argv[1]).read_text(), sys.argv[2]
packed = re.search(r"--slurm-jobstep-array-execs[= ]'?([\w+/=]+)", script)[1]
command = json.loads(base64.b64decode(packed))[task]
print(zlib.decompress(bytes.fromhex(command)).decode())
PYTHON
    ) || exit 1
    export DPCANARY_OWN_COMMAND
    exec sh -c "$DPCANARY_OWN_COMMAND"
fi
