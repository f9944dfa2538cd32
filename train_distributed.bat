@echo off
powershell -NoProfile -ExecutionPolicy Bypass -File "%~dp0scripts\train_distributed.ps1" %*
exit /b %ERRORLEVEL%
