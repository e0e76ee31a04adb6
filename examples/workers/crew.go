package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// A crew is the worker processes, as the parent sees them.
type crew struct {
	cancel    context.CancelFunc // tells the workers to end
	out       io.Writer
	startedAt time.Time
	workers   []*worker
	events    chan event // what they tell; closed when all have ended
	seen      timeline   // what await has taken from events
}

type worker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// startCrew starts n workers. The crew has to be stopped even after an error.
func startCrew(out io.Writer, n int, addr string, unit time.Duration) (*crew, error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &crew{cancel: cancel, out: out, startedAt: time.Now(), events: make(chan event)}
	var running sync.WaitGroup
	defer func() {
		// Owned by the crew; ends when its workers have; stop waits for it.
		go func() { running.Wait(); close(c.events) }()
	}()
	self, err := os.Executable()
	if err != nil {
		return c, err
	}
	for number := 1; number <= n; number++ {
		cmd := exec.CommandContext(ctx, self, "-worker", strconv.Itoa(number), "-redis", addr, "-unit", unit.String())
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return c, err
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return c, err
		}
		cmd.Cancel = stdin.Close // a worker then releases what it holds, and ends
		cmd.WaitDelay = 10 * time.Second
		if err := cmd.Start(); err != nil {
			return c, err
		}
		c.workers = append(c.workers, &worker{cmd, stdin})
		// Owned by the crew; ends with the process; stop waits for it.
		running.Go(func() { c.hear(number, cmd, stdout) })
	}
	return c, nil
}

// hear passes on what a worker tells, and then that it has ended.
func (c *crew) hear(number int, cmd *exec.Cmd, stdout io.Reader) {
	lines := json.NewDecoder(stdout)
	for {
		var e event
		if lines.Decode(&e) != nil {
			break // its end, or it tells nonsense and is not heard any more
		}
		c.events <- e
	}
	_ = cmd.Wait() // its state tells more
	c.events <- event{At: time.Now(), Worker: number, What: ended, State: cmd.ProcessState.String()}
}

// stop ends the workers and waits for them.
func (c *crew) stop() {
	c.cancel()
	for range c.events {
	}
}

// order gives a worker a task.
func (c *crew) order(number, units int) {
	// A worker that has ended cannot be told; await says that it has.
	_, _ = fmt.Fprintln(c.workers[number-1].stdin, units)
}

// await shows what happens until n events of a kind have come, and returns the last.
func (c *crew) await(ctx context.Context, what string, n int) (event, error) {
	for {
		select {
		case e := <-c.events:
			c.seen = append(c.seen, e)
			fmt.Fprintf(c.out, "%7.3f s  %v\n", e.At.Sub(c.startedAt).Seconds(), e)
			if e.What == what {
				if n--; n == 0 {
					return e, nil
				}
			} else if e.What == ended {
				return e, fmt.Errorf("%v before its time", e)
			}
		case <-ctx.Done():
			return event{}, context.Cause(ctx)
		}
	}
}
