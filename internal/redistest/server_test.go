package redistest_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/redistest"
)

// alone has go-redis send nothing but what is asked, so that commands can be counted.
func alone(o *redis.Options) { o.DisableIdentity = true }

func pid(t testing.TB, c *redis.Client) int {
	t.Helper()
	info, err := c.Info(t.Context(), "server").Result()
	require.NoError(t, err)
	_, rest, _ := strings.Cut(info, "process_id:")
	number, _, _ := strings.Cut(rest, "\r\n")
	pid, err := strconv.Atoi(number)
	require.NoError(t, err)
	return pid
}

func runs(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestServer_EndsWithTheTest(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, s *redistest.Server){
		"running": func(*testing.T, *redistest.Server) {},
		"paused":  func(t *testing.T, s *redistest.Server) { s.Pause(t) },
		"killed":  func(t *testing.T, s *redistest.Server) { s.Kill(t) },
	} {
		var last int
		t.Run(name, func(t *testing.T) {
			s := redistest.NewServer(t)
			last = pid(t, s.Client(t))
			require.True(t, runs(last))
			leave(t, s)
		})
		assert.True(t, last == 0 || !runs(last), "%s: process %d is left", name, last)
	}
}

func TestServer_KillAndRestartEmpty(t *testing.T) {
	s := redistest.NewServer(t)
	c := s.Client(t)
	addr := s.Addr()
	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())

	s.Kill(t)
	s.Kill(t)
	assert.ErrorIs(t, c.Ping(t.Context()).Err(), syscall.ECONNREFUSED)
	s.Restart(t)
	assert.Equal(t, addr, s.Addr())
	assert.Zero(t, c.DBSize(t.Context()).Val())

	require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	s.Pause(t)
	s.Restart(t) // kills one that is paused
	assert.Zero(t, c.DBSize(t.Context()).Val())
	assert.NoError(t, c.Ping(t.Context()).Err())
}

func TestServer_Arguments(t *testing.T) {
	s := redistest.NewServer(t, "--requirepass", "secret")
	assert.True(t, redis.HasErrorPrefix(s.Client(t).Get(t.Context(), "k").Err(), "NOAUTH"))
	c := s.Client(t, func(o *redis.Options) { o.Password = "secret" })
	assert.NoError(t, c.Ping(t.Context()).Err())
	assert.Equal(t, "", c.ConfigGet(t.Context(), "save").Val()["save"])
	assert.Equal(t, "no", c.ConfigGet(t.Context(), "appendonly").Val()["appendonly"])
}

func TestServer_CommandsCountsWithoutItself(t *testing.T) {
	s := redistest.NewServer(t)
	assert.Zero(t, s.Commands(t), "a new server")
	assert.Zero(t, s.Commands(t))
	c := s.Client(t, alone)
	require.NoError(t, c.Ping(t.Context()).Err())
	before := s.Commands(t)
	for range 5 {
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
	}
	assert.EqualValues(t, 5, s.Commands(t)-before)
	before = s.Commands(t)
	require.NoError(t, c.Eval(t.Context(), `redis.call('GET', KEYS[1]) return redis.call('GET', KEYS[1])`, []string{"k"}).Err())
	assert.EqualValues(t, 3, s.Commands(t)-before, "a script, and each command that it calls")
	s.Restart(t)
	assert.Zero(t, s.Commands(t), "a new process")
}

// Servers that start at the same time, as those of several test binaries do, do
// not end up with each other's port.
func TestServer_ManyAtOnce(t *testing.T) {
	var all sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]bool{}
	for range 6 {
		all.Go(func() {
			s := redistest.NewServer(t)
			mu.Lock()
			defer mu.Unlock()
			assert.False(t, seen[s.Addr()])
			seen[s.Addr()] = true
		})
	}
	all.Wait()
	assert.Len(t, seen, 6)
}

// outlive is set in the test binary that TestServer_DiesWithTheTestBinary runs.
const outlive = "LEASEHOLD_TEST_OUTLIVE"

func TestServer_DiesWithTheTestBinary(t *testing.T) {
	if os.Getenv(outlive) != "" {
		s := redistest.NewServer(t)
		os.Stdout.WriteString("pid " + strconv.Itoa(pid(t, s.Client(t))) + "\n")
		time.Sleep(time.Minute) // killed meanwhile
		return
	}
	if !diesWithUs {
		t.Skip("only Linux ends a process with the one that started it")
	}
	redistest.NewServer(t) // skips if there is none to start
	cmd := exec.Command(os.Args[0], "-test.run=^TestServer_DiesWithTheTestBinary$")
	cmd.Env = append(os.Environ(), outlive+"=1")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	require.NoError(t, err)
	server, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(string(buf[:n]), "pid ")))
	require.NoError(t, err, "%q", buf[:n])
	require.True(t, runs(server))
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait() // fails, because it was killed
	defer func() {
		if alive(server) {
			assert.NoError(t, syscall.Kill(server, syscall.SIGKILL))
		}
	}()
	eventually(t, func() bool { return !alive(server) }, "ended")
}

func TestServer_WithoutRedisServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("LEASEHOLD_REQUIRE_REDIS", "")
	skipped := &verdict{TB: t}
	ended := make(chan struct{})
	go func() { // ends with NewServer's Skip; waited for below
		defer close(ended)
		redistest.NewServer(skipped)
	}()
	<-ended
	assert.Contains(t, skipped.skip, "apt-get install redis-server")
	assert.Empty(t, skipped.fatal)

	t.Setenv("LEASEHOLD_REQUIRE_REDIS", "1")
	failed := &verdict{TB: t}
	ended = make(chan struct{})
	go func() { // ends with NewServer's Fatal; waited for below
		defer close(ended)
		redistest.NewServer(failed)
	}()
	<-ended
	assert.Contains(t, failed.fatal, "apt-get install redis-server")
	assert.Empty(t, failed.skip)
}
