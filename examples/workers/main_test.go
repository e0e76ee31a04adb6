package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// beMain is the environment variable under which the test binary is the example, as
// parent and as worker.
const beMain = "LEASEHOLD_TEST_WORKERS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// patience is how long a test waits for what must happen, on a slow machine.
const patience = 90 * time.Second

// A program is a run of the example. Its workers write to its stderr, so that its
// Wait returns only when they have ended too.
type program struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func newProgram(t *testing.T, args ...string) *program {
	self, err := os.Executable()
	require.NoError(t, err)
	p := &program{Cmd: exec.Command(self, args...)}
	p.Env = append(os.Environ(), beMain+"=yes")
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	return p
}

// check runs the example until it has found nothing to complain of. Where the
// machine stands still for half a TTL, workers rightly lose their leases, and the
// key is taken over late: such a run is repeated. Two holders at once, a fence that
// does not rise, and a key that was another's within the lease have no excuse.
func check(t *testing.T, args ...string) {
	for deadline := time.Now().Add(patience); ; {
		began := time.Now()
		p := newProgram(t, append(args, "-unit", "20ms")...)
		err := p.Run()
		t.Logf("%v, %v:\n%s%s", time.Since(began), err, &p.stdout, &p.stderr)
		if err == nil {
			says(t, p.stdout.String())
			return
		}
		require.Equal(t, 1, p.ProcessState.ExitCode())
		for _, what := range []string{exclusionBroken, leasehold.LossTaken.String(), leasehold.LossGone.String()} {
			require.NotContains(t, p.stderr.String(), what)
		}
		require.True(t, time.Now().Before(deadline), "no run in %v was without a complaint", patience)
	}
}

// says checks what a run without a complaint has printed.
func says(t *testing.T, out string) {
	for _, want := range []string{
		"a TTL of 200ms. The tasks take [2 5 10 15 22] units of 20ms.",
		"worker 1  has done its 2 units", "worker 2  has done its 5 units", "worker 3  has done its 10 units",
		"worker 4  has done its 15 units", "worker 5  has done its 22 units",
		"worker 5  ended: signal: killed",
		"No two workers held the key at once",
	} {
		assert.Contains(t, out, want)
	}
	assert.Equal(t, 9, strings.Count(out, "has done its"))
	assert.Equal(t, 10, strings.Count(out, "holds the key"))
	assert.Regexp(t, `Worker [1-4] held the key [0-9.]+ms after the last renewal of the killed one; the TTL is 200ms\.\n$`, out)
}

func TestWorkers(t *testing.T) {
	t.Parallel()
	check(t)
}

func TestWorkersOnRedis(t *testing.T) {
	t.Parallel()
	check(t, "-redis", redistest.NewServer(t).Addr())
}

// Whatever ends the parent, the workers end too: Wait returns.
func TestWorkersEndWithTheParent(t *testing.T) {
	for name, signal := range map[string]os.Signal{"interrupted": os.Interrupt, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProgram(t, "-unit", "1s")
			p.Stdout = nil
			stdout, err := p.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, p.Start())
			for seen := ""; !strings.Contains(seen, "holds"); {
				more := make([]byte, 1024)
				n, err := stdout.Read(more)
				require.NoError(t, err)
				seen += string(more[:n])
			}
			require.NoError(t, p.Process.Signal(signal))
			ended := make(chan error, 1)
			go func() { ended <- p.Wait() }()
			select {
			case err := <-ended:
				assert.Error(t, err)
				assert.False(t, p.ProcessState.Success())
			case <-time.After(patience):
				t.Fatal("the workers do not end")
			}
		})
	}
}

func TestWorkersSayWhatCannotWork(t *testing.T) {
	t.Parallel()
	p := newProgram(t, "-unit", "1ns")
	require.Error(t, p.Run())
	assert.Equal(t, 1, p.ProcessState.ExitCode())
	assert.Contains(t, p.stderr.String(), "WithTTL")
}

// at makes an event so many milliseconds after some moment.
func at(ms int, worker int, what string, fence int64) event {
	return event{At: time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond), Worker: worker, What: what, Fence: fence}
}

func TestCheckExclusion(t *testing.T) {
	for name, c := range map[string]struct {
		events timeline
		says   string
	}{
		"one after the other": {timeline{
			at(0, 1, waits, 0), at(0, 2, waits, 0), at(1, 1, holds, 7), at(5, 1, done, 0), at(5, 2, holds, 8), at(9, 2, done, 0),
		}, ""},
		"heard in another order": {timeline{
			at(5, 2, holds, 8), at(1, 1, holds, 7), at(9, 2, done, 0), at(4, 1, done, 0),
		}, ""},
		"after a death": {timeline{at(1, 1, holds, 7), at(5, 1, ended, 0), at(6, 2, holds, 8)}, ""},
		"two at once": {timeline{
			at(1, 1, holds, 7), at(4, 2, holds, 8), at(5, 1, done, 0), at(9, 2, done, 0),
		}, "worker 2 held the key while worker 1 did"},
		"one within the other": {timeline{
			at(1, 1, holds, 7), at(2, 2, holds, 8), at(3, 2, done, 0), at(9, 1, done, 0),
		}, "worker 2 held the key while worker 1 did"},
		"before the death": {timeline{
			at(1, 1, holds, 7), at(4, 2, holds, 8), at(5, 1, ended, 0),
		}, "worker 2 held the key while worker 1 did"},
		"another's end is not the holder's": {timeline{
			at(1, 1, holds, 7), at(2, 3, ended, 0), at(4, 2, holds, 8),
		}, "worker 2 held the key while worker 1 did"},
		"the same fence": {timeline{
			at(1, 1, holds, 7), at(2, 1, done, 0), at(4, 2, holds, 7),
		}, "worker 2 held the key with fence 7, after fence 7"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.events.checkExclusion()
			if c.says == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, c.says)
			assert.ErrorContains(t, err, exclusionBroken)
		})
	}
}

func TestCheckTakeOver(t *testing.T) {
	assert.NoError(t, checkTakeOver(time.Second, time.Second))
	assert.NoError(t, checkTakeOver(1200*time.Millisecond, time.Second))
	assert.ErrorContains(t, checkTakeOver(1201*time.Millisecond, time.Second), "1.201s after the last renewal")
}

func TestChart(t *testing.T) {
	events := timeline{
		at(0, 1, waits, 0), at(0, 2, waits, 0), at(1, 1, holds, 7), at(31, 1, done, 0), at(33, 2, holds, 8), at(61, 2, ended, 0),
	}
	assert.Equal(t, ""+
		"worker 1  ███\n"+
		"worker 2  ···███†\n"+
		"worker 3\nworker 4\nworker 5\n"+
		"          · waits  █ holds  † killed  (a column is 10ms)\n",
		events.chart(10*time.Millisecond))
}
