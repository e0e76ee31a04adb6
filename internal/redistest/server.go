package redistest

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Server is a real redis-server on a loopback port, which keeps nothing on disk.
// Its methods are for one goroutine at a time.
type Server struct {
	dir  string
	args []string
	port int

	process *process // the present one, or the one that was killed last
	paused  bool
	asked   int64 // commands that Commands has sent to the present process
}

var _ Redis = (*Server)(nil)

const missing = "redis-server is not installed: apt-get install redis-server"

// startTimeout bounds the start of a redis-server, and each question to one.
const startTimeout = 10 * time.Second

// NewServer starts a redis-server with args, of redis-server's command line, after
// its own, and waits until it takes connections. It ends with the test. Without a
// redis-server on PATH the test is skipped, or fails where the environment has
// LEASEHOLD_REQUIRE_REDIS.
func NewServer(t testing.TB, args ...string) *Server {
	t.Helper()
	return newServer(t, freePort, args)
}

func newServer(t testing.TB, choose func(t testing.TB) int, args []string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_REDIS") != "" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	s := &Server{dir: t.TempDir(), args: args}
	t.Cleanup(func() { s.Kill(t) })
	startOnAPort(t, choose, func(port int) (err error) {
		s.port = port
		s.process, err = s.start()
		return err
	})
	return s
}

// startOnAPort calls start with one port after another, until there is one that is
// not in use: between choosing a free port and redis-server's taking it, another
// test's server can take it.
func startOnAPort(t testing.TB, choose func(t testing.TB) int, start func(port int) error) {
	t.Helper()
	for range 100 {
		err := start(choose(t))
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "Address already in use") {
			t.Fatal(err)
		}
	}
	t.Fatal("redis-server found each of a hundred ports in use")
}

// Addr is where the server listens, before and after a Restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Client returns a client of the server.
func (s *Server) Client(t testing.TB, edit ...func(*redis.Options)) *redis.Client {
	t.Helper()
	return newClient(t, &redis.Options{Addr: s.Addr()}, edit)
}

// Pause stops the process and returns when it stands still.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	if s.paused {
		return
	}
	if err := s.process.stop(); err != nil {
		t.Fatalf("pausing redis-server: %v", err)
	}
	s.paused = true
}

// Resume lets the process go on.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	if !s.paused {
		return
	}
	if err := s.process.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatalf("resuming redis-server: %v", err)
	}
	s.paused = false
}

// Kill ends the process without any warning, paused or not, and returns when it is
// gone. Killing twice is killing once.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.process == nil {
		return
	}
	if err := s.process.kill(); err != nil {
		t.Fatalf("killing redis-server: %v", err)
	}
	s.paused = false
}

// Restart starts the server again at its address, empty. One that still runs is
// killed first.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Kill(t)
	p, err := s.start()
	if err != nil {
		t.Fatal(err)
	}
	s.process, s.asked = p, 0
}

// Commands returns how many commands the server has carried out since it started:
// those of clients, of setting up their connections, and each one that a script
// calls, but none of Commands' own, and none that the server refused.
func (s *Server) Commands(t testing.TB) int64 {
	t.Helper()
	reply, err := s.ask("INFO stats\r\n")
	if err != nil {
		t.Fatalf("asking redis-server for its statistics: %v", err)
	}
	_, rest, _ := strings.Cut(reply, "total_commands_processed:")
	number, _, _ := strings.Cut(rest, "\r\n")
	total, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		t.Fatalf("redis-server does not count its commands: %q", reply)
	}
	total -= s.asked
	s.asked++ // INFO counts itself only in the next answer
	return total
}

// ask sends one command on a connection of its own: a client would add the commands
// by which it sets up its connection.
func (s *Server) ask(command string) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr(), startTimeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte(command)); err != nil {
		return "", err
	}
	reply, err := readFrame(bufio.NewReader(c))
	return string(reply), err
}

func (s *Server) start() (*process, error) {
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", s.dir,
	}, s.args...)
	cmd := exec.Command("redis-server", args...)
	return startProcess(cmd, "Ready to accept connections")
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A process is one run of redis-server.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// startProcess starts redis-server and returns when it takes connections. It goes
// by the server's log, which says so with the words readyText, since a connection
// to its port may be another server's.
func startProcess(cmd *exec.Cmd, readyText string) (*process, error) {
	cmd.SysProcAttr = diesWithUs()
	p := &process{cmd: cmd, done: make(chan struct{})}
	log := &startLog{readyText: []byte(readyText), ready: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = log, log
	started := make(chan error, 1)
	// Owned by the process; ends with it, or if it cannot be started; kill waits for
	// it. It keeps the thread that started the process: diesWithUs goes by the
	// thread, and the runtime may end one that no goroutine has to itself.
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() // fails, because the server is killed
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}

	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case <-log.ready:
		return p, nil
	case <-p.done:
		return nil, fmt.Errorf("redis-server ended at its start:\n%s", log)
	case <-timeout.C:
		err := fmt.Errorf("redis-server was not ready after %v:\n%s", startTimeout, log)
		p.kill()
		return nil, err
	}
}

// stop sends SIGSTOP and waits until the kernel has stopped the process, which may
// still answer a command after the signal was sent.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case !status.Stopped():
			return fmt.Errorf("it has ended with status %#x", status)
		default:
			return nil
		}
	}
}

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && err != os.ErrProcessDone {
		return err
	}
	<-p.done
	return nil
}

// startLog keeps what redis-server prints, and tells when it takes connections.
type startLog struct {
	readyText []byte        // by which it tells
	ready     chan struct{} // closed at that line

	mu   sync.Mutex
	text bytes.Buffer
	seen bool // ready is closed
}

func (l *startLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	if !l.seen && bytes.Contains(l.text.Bytes(), l.readyText) {
		l.seen = true
		close(l.ready)
	}
	return len(p), nil
}

func (l *startLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
