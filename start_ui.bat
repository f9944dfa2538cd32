@echo off
powershell -NoProfile -ExecutionPolicy Bypass -File "%~dp0scripts\start_ui.ps1" %*
exit /b %ERRORLEVEL%
