package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// MasterName is what the sentinels of a Sentinel call their primary.
const MasterName = "redistest"

// A Sentinel is a primary with one replica, behind three sentinels of which two
// must agree. They leave a slow primary alone, and go over to the replica only at
// Failover and KillPrimary.
type Sentinel struct {
	Primary, Replica *Server // as they were at the start

	sentinels []string // their addresses
}

const (
	sentinelCount = 3
	quorum        = 2
)

// NewSentinel starts the servers, with args for the primary and the replica, and
// waits until the replica is in sync and each sentinel knows all others. It ends
// with the test, and is skipped or fails as NewServer does.
func NewSentinel(t testing.TB, args ...string) *Sentinel {
	t.Helper()
	s := &Sentinel{Primary: NewServer(t, append([]string{"--repl-diskless-sync-delay", "0"}, args...)...)}
	s.Replica = NewServer(t, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(s.Primary.port)}, args...)...)
	await(t, "the replica is not in sync", func() bool {
		info, err := s.Replica.ask("INFO replication\r\n")
		demand(t, err)
		return strings.Contains(info, "master_link_status:up")
	})
	for range sentinelCount {
		s.sentinels = append(s.sentinels, startSentinel(t, s.Primary.port))
	}
	for _, addr := range s.sentinels {
		admin := s.sentinel(t, addr)
		await(t, "a sentinel does not know all others", func() bool {
			m, err := admin.Master(t.Context(), MasterName).Result()
			demand(t, err)
			return m["flags"] == "master" && m["num-slaves"] == "1" &&
				m["num-other-sentinels"] == strconv.Itoa(sentinelCount-1)
		})
	}
	return s
}

// Client returns a client of whichever server is the primary, with go-redis's
// default options, changed by edit in the order given. It is closed at the test's
// end.
func (s *Sentinel) Client(t testing.TB, edit ...func(*redis.FailoverOptions)) *redis.Client {
	t.Helper()
	o := &redis.FailoverOptions{MasterName: MasterName, SentinelAddrs: s.sentinels}
	for _, e := range edit {
		e(o)
	}
	c := redis.NewFailoverClient(o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Logf("closing the client: %v", err)
		}
	})
	return c
}

// Failover makes the replica the primary, and returns when all sentinels say so.
// The old primary lives: it takes writes, which are lost, until a sentinel has made
// it a replica. After that one, there is no second failover.
func (s *Sentinel) Failover(t testing.TB) {
	t.Helper()
	demand(t, s.sentinel(t, s.sentinels[0]).Failover(t.Context(), MasterName).Err())
	s.awaitSwitch(t)
}

// KillPrimary ends the primary without warning, and returns when the sentinels have
// found out by themselves and all say that the replica is the primary.
func (s *Sentinel) KillPrimary(t testing.TB) {
	t.Helper()
	for _, addr := range s.sentinels {
		demand(t, s.sentinel(t, addr).Set(t.Context(), MasterName, "down-after-milliseconds", "1000").Err())
	}
	s.Primary.Kill(t)
	s.awaitSwitch(t)
}

func (s *Sentinel) awaitSwitch(t testing.TB) {
	t.Helper()
	for _, addr := range s.sentinels {
		admin := s.sentinel(t, addr)
		await(t, "a sentinel has not gone over to the replica", func() bool {
			primary, err := admin.GetMasterAddrByName(t.Context(), MasterName).Result()
			demand(t, err)
			return net.JoinHostPort(primary[0], primary[1]) == s.Replica.Addr()
		})
	}
}

func (s *Sentinel) sentinel(t testing.TB, addr string) *redis.SentinelClient {
	t.Helper()
	c := redis.NewSentinelClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// startSentinel starts a sentinel that watches the primary at a port, and returns
// its address. It ends with the test.
func startSentinel(t testing.TB, primary int) (addr string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "sentinel.conf") // which the sentinel writes anew, again and again
	startOnAPort(t, freePort, func(port int) error {
		demand(t, os.WriteFile(file, fmt.Appendf(nil, `port %d
bind 127.0.0.1
dir %q
daemonize no
sentinel monitor %s 127.0.0.1 %d %d
sentinel down-after-milliseconds %[3]s 60000
sentinel failover-timeout %[3]s 10000
`, port, dir, MasterName, primary, quorum), 0o600))
		p, err := startProcess(exec.Command("redis-server", file, "--sentinel"), "Sentinel ID is")
		if err == nil {
			addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			t.Cleanup(func() { demand(t, p.kill()) })
		}
		return err
	})
	return addr
}
