# Sets up Tandem's Python environment in .venv: scripts\setup.bat [--dev]. The twin of setup.sh.
# The variable PYTHON chooses the Python for a new .venv.
$root = Split-Path -Parent $PSScriptRoot
$venv = Join-Path $root '.venv'
$venvPython = Join-Path $venv 'Scripts\python.exe'

# Whether install.py has installed this lock file for the current Python of .venv.
function Test-Installed($lock) {
    $copy = Join-Path $venv "installed\$(& $venvPython -V)\$lock"
    (Test-Path $copy) -and ((Get-FileHash $copy).Hash -eq (Get-FileHash (Join-Path $root $lock)).Hash)
}

if (Test-Path $venvPython) {
    $locks = @('requirements.lock')
    if ($args -contains '--dev') { $locks += 'requirements-dev.lock' }
    $missing = @($locks | Where-Object { -not (Test-Installed $_) })
    if ($missing.Count -eq 0) { exit 0 }
}

$candidates = @()
if ($env:PYTHON) {
    $candidates += $env:PYTHON
} else {
    # An incomplete .venv will be deleted, which Windows refuses while its Python runs.
    if (-not (Test-Path (Join-Path $venv 'setup-unfinished'))) { $candidates += $venvPython }
    $candidates += 'python', 'python3'
    if (Get-Command py -ErrorAction SilentlyContinue) {
        foreach ($minor in 13, 12, 11) {
            $path = & py "-3.$minor" -c 'import sys; print(sys.executable)' 2>$null
            if ($LASTEXITCODE -eq 0) { $candidates += $path }
        }
    }
}
$found = 'there is none'
foreach ($candidate in $candidates) {
    if (-not (Get-Command $candidate -ErrorAction SilentlyContinue)) { continue }
    $version = & $candidate -V 2>$null
    if ($LASTEXITCODE -ne 0) { continue }
    if ($version -match '^Python 3\.(11|12|13)\.') {
        & $candidate -I (Join-Path $PSScriptRoot 'install.py') @args
        exit $LASTEXITCODE
    }
    $found = "$candidate is $version"
}
[Console]::Error.WriteLine("Tandem is not set up: it needs Python 3.11, 3.12 or 3.13, but $found; " +
    'install one (winget install Python.Python.3.12) or name yours in the variable PYTHON.')
exit 1
