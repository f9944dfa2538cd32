# The twin of train_distributed.sh: train_distributed.bat [NUM_GPUS|all] [CONFIG] [further options of scripts\train.py]
$root = Split-Path -Parent $PSScriptRoot
$python = Join-Path $root '.venv\Scripts\python.exe'
$gpus = 'all'
$config = @('--config', 'demo')
$options = [System.Collections.ArrayList]@($args)

if ($options.Count -gt 0 -and ("$($options[0])" -in '-h', '--help' -or -not "$($options[0])".StartsWith('-'))) {
    $gpus = "$($options[0])"
    $options.RemoveAt(0)
}
if ($gpus -in '-h', '--help') {
    Write-Output 'train_distributed.bat [NUM_GPUS|all] [CONFIG] [further options of scripts\train.py]'
    Write-Output '  NUM_GPUS  processes, one on each GPU; all (the default): every GPU, or two CPU processes if there is none'
    Write-Output '  CONFIG    a config file (.json, .yaml) or the name of a preset; the default is demo'
    exit 0
}
if ($gpus -notmatch '^(all|[1-9][0-9]*)$') {
    [Console]::Error.WriteLine("The first argument is '$gpus'; give a number of GPUs from 1, or all (--help says more).")
    exit 2
}
if ($options.Count -gt 0 -and -not "$($options[0])".StartsWith('-')) {
    $config = '--config', $options[0]
    $options.RemoveAt(0)
}
elseif ("$options" -match '(^| )--resume') { $config = @() } # the config of that run

& (Join-Path $PSScriptRoot 'setup.ps1')
if ($LASTEXITCODE -ne 0) { exit $LASTEXITCODE }
# Without a GPU, training would use one process.
if ($gpus -eq 'all') {
    & $python -c 'import sys; from modules.machine import visible_gpus; sys.exit(not visible_gpus())'
    if ($LASTEXITCODE -ne 0) { $gpus = '2' }
}
$processes = @()
if ($gpus -ne 'all') { $processes = '--set', "world_size=$gpus" }
& $python (Join-Path $PSScriptRoot 'train.py') --multi_gpu @processes @config @options
exit $LASTEXITCODE
