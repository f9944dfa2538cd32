# The twin of start_ui.sh: start_ui.bat [--config FILE] [--run FOLDER]
$root = Split-Path -Parent $PSScriptRoot
& (Join-Path $PSScriptRoot 'setup.ps1')
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
# Relative paths refer to the current folder.
$env:PYTHONPATH = if ($env:PYTHONPATH) { "$root;$env:PYTHONPATH" } else { $root }
& (Join-Path $root '.venv\Scripts\python.exe') -P -m app @args
exit $LASTEXITCODE
