# The twin of test.sh: runs every check; scripts\test.bat [options for pytest].
$python = Join-Path (Split-Path -Parent $PSScriptRoot) '.venv\Scripts\python.exe'
Set-Location (Split-Path -Parent $PSScriptRoot)

& (Join-Path $PSScriptRoot 'setup.ps1') --dev
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
# The tests' ranks share few cores; each with a thread per core would only wait for the others.
if (-not $env:OMP_NUM_THREADS) { $env:OMP_NUM_THREADS = '1' }

$checks = @(
    @('-m', 'ruff', 'check', '--quiet', '--output-format', 'concise', '.'),
    @('-m', 'ruff', 'format', '--quiet', '--check', '--output-format', 'concise', '.'),
    @('-m', 'mypy'),
    @('-c', 'from importlinter.cli import lint_imports_command; lint_imports_command()', '--no-logo'),
    (@('-m', 'pytest') + $args)
)
$status = 0
foreach ($check in $checks) {
    Write-Output "== $check"
    & $python @check
    if ($LASTEXITCODE -ne 0) { $status = 1 }
}
exit $status
