package redistest

import "syscall"

// diesWithUs has the kernel end a server whose test was killed.
func diesWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
