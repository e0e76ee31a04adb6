package redistest_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

const diesWithUs = runtime.GOOS == "linux"

// A verdict is a testing.TB that notes how the test was ended. Skip and Fatal end
// the goroutine, as testing's do.
type verdict struct {
	testing.TB
	skip, fatal string
}

func (v *verdict) Skip(args ...any) {
	v.skip = fmt.Sprint(args...)
	runtime.Goexit()
}

func (v *verdict) Fatal(args ...any) {
	v.fatal = fmt.Sprint(args...)
	runtime.Goexit()
}

// alive tells a process from one that has ended and waits for its parent: where
// nobody collects orphans, a killed server stays in the table for ever.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
