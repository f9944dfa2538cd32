# The twin of test.sh: runs every check; scripts\test.bat [--fast] [options for pytest].
$python = Join-Path (Split-Path -Parent $PSScriptRoot) '.venv\Scripts\python.exe'
Set-Location (Split-Path -Parent $PSScriptRoot)

& (Join-Path $PSScriptRoot 'setup.ps1') --dev
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
# The ranks of a test share few cores; with a thread per core each, they would only wait for one another.
if (-not $env:OMP_NUM_THREADS) { $env:OMP_NUM_THREADS = '1' }

$checks = @(
    @('-m', 'ruff', 'check', '--quiet', '--output-format', 'concise', '.'),
    @('-m', 'ruff', 'format', '--quiet', '--check', '--output-format', 'concise', '.'),
    @('-c', 'from importlinter.cli import lint_imports_command; lint_imports_command()', '--no-logo'),
    @('-m', 'mkdocs', 'build', '--strict'),
    (@('-m', 'pytest') + $args)
)
if ($args[0] -ne '--fast') { $checks = @(, @('-m', 'mypy')) + $checks }
$status = 0
foreach ($check in $checks) {
    Write-Output "== $check"
    & $python @check
    if ($LASTEXITCODE -ne 0) { $status = 1 }
}
exit $status
