"""Found before a program's own `modules`, in its child processes too: `import tandem` puts Tandem's in its place."""

import tandem as tandem
