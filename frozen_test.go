//go:build unix

package leasehold_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold"
	"github.com/goleasehold/leasehold/internal/redistest"
)

// frozenTTL is the TTL of the process that is frozen: short, since each round waits
// for its end.
const frozenTTL = 120 * time.Millisecond

// What the process is ordered to do, a byte each.
const (
	orderAcquire = 'a' // and look whether the lease's context is alive
	orderLook    = 'l' // look at the lease's context at once, and Release
	orderWrite   = 'w' // write at once, by the look that came before, and Release
)

// A frozenReport is what the process answers an order.
type frozenReport struct {
	Token      string
	Fence      int64
	Alive      bool   // its context's Err was nil
	CauseLost  bool   // its context's cause was ErrLost
	Written    bool   // its write was let through by the store that looks at fences
	ReleaseErr string // what Release said
	Lost       bool   // and that it was ErrLost
}

// A frozenProcess is this test binary, run again as TestFrozenHelper.
type frozenProcess struct {
	cmd     *exec.Cmd
	key     string
	orders  *os.File
	reports *json.Decoder
}

// By these environment variables it knows what it is, its Redis and its key.
const (
	frozenRedis = "LEASEHOLD_TEST_FROZEN_REDIS"
	frozenKey   = "LEASEHOLD_TEST_FROZEN_KEY"
)

func startFrozen(t *testing.T, s *redistest.Server, key string) *frozenProcess {
	t.Helper()
	stdin, orders, err := os.Pipe()
	require.NoError(t, err)
	reports, told, err := os.Pipe()
	require.NoError(t, err)
	var output bytes.Buffer
	cmd := exec.Command(os.Args[0], "-test.run=^TestFrozenHelper$")
	// With one processor, what runs when it is frozen is what runs when it wakes.
	cmd.Env = append(os.Environ(), frozenRedis+"="+s.Addr(), frozenKey+"="+key, "GOMAXPROCS=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = stdin, &output, &output, []*os.File{told}
	require.NoError(t, cmd.Start())
	require.NoError(t, errors.Join(stdin.Close(), told.Close()))
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // which ends one that stands still, too
		_ = cmd.Wait()
		_ = errors.Join(orders.Close(), reports.Close())
		if t.Failed() {
			t.Logf("the process that was frozen:\n%s", &output)
		}
	})
	return &frozenProcess{cmd, key, orders, json.NewDecoder(reports)}
}

func (p *frozenProcess) order(t *testing.T, order byte) {
	t.Helper()
	_, err := p.orders.Write([]byte{order})
	require.NoError(t, err)
}

func (p *frozenProcess) report(t *testing.T) (r frozenReport) {
	t.Helper()
	require.NoError(t, p.reports.Decode(&r))
	return r
}

// freeze stops the process, and returns when it stands still.
func (p *frozenProcess) freeze(t *testing.T) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err != syscall.EINTR {
			require.NoError(t, err)
			break
		}
	}
	require.True(t, status.Stopped(), "it has ended with status %#x", status)
}

// wake lets the process go on, and returns what it reports. The order is given while
// it stands still: all that comes of it comes after the waking.
func (p *frozenProcess) wake(t *testing.T, order byte) frozenReport {
	t.Helper()
	p.order(t, order)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	return p.report(t)
}

// freezeHolder freezes the process while it holds the key, and returns when the
// successor holds it. On a machine so slow that the lease was lost before the freeze
// it tries again.
func (p *frozenProcess) freezeHolder(t *testing.T, rdb *redis.Client, successor *leasehold.Lock) (held frozenReport, lease context.Context) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		p.order(t, orderAcquire)
		held = p.report(t)
		p.freeze(t)
		holds := get(t, rdb, p.key) == held.Token
		lease = acquire(t, successor)
		if held.Alive && holds {
			return held, lease
		}
		p.wake(t, orderLook)
		require.NoError(t, successor.Release())
	}
	t.Fatalf("in %v the process was never frozen while it held the key", patience)
	return held, lease
}

// TestFrozenHelper is the process that is frozen. Run as a test it does nothing.
func TestFrozenHelper(t *testing.T) {
	addr := os.Getenv(frozenRedis)
	if addr == "" {
		return
	}
	require.NoError(t, syscall.SetNonblock(syscall.Stdin, true))
	reports := json.NewEncoder(os.NewFile(3, "reports"))
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	l := newClient(t, rdb, leasehold.WithTTL(frozenTTL)).NewLock(os.Getenv(frozenKey))
	for nextOrder() == orderAcquire {
		var lease context.Context
		eventually(t, func() bool {
			var err error
			lease, err = l.Acquire(t.Context())
			return err == nil
		}, "the process holds the key") // on a slow machine Redis may not answer within a TTL
		r := frozenReport{Token: l.Token(), Fence: l.Fence(), Alive: lease.Err() == nil}
		require.NoError(t, reports.Encode(r))

		if nextOrder() == orderLook {
			r.Alive = lease.Err() == nil
			ends(t, lease)
			r.CauseLost = errors.Is(context.Cause(lease), leasehold.ErrLost)
		} else {
			fence, ok := leasehold.FenceFrom(lease, l.Key())
			require.True(t, ok)
			r.Written = write(t, rdb, l.Key(), fence)
		}
		err := l.Release()
		r.ReleaseErr, r.Lost = fmt.Sprint(err), errors.Is(err, leasehold.ErrLost)
		require.NoError(t, reports.Encode(r))
	}
}

// nextOrder returns the next order, 0 after the last. It does not sleep meanwhile,
// so that the process is frozen at work, and what it does first on waking is what it
// was ordered, not what a timer would have it do.
func nextOrder() byte {
	var order [1]byte
	for {
		switch n, err := syscall.Read(syscall.Stdin, order[:]); {
		case n == 1:
			return order[0]
		case err == nil: // the test has ended
			return 0
		}
	}
}

// fencedWrite writes at a store that refuses what comes with a lower fence than the
// highest it has seen.
var fencedWrite = redis.NewScript(`
	local seen = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
	if tonumber(ARGV[1]) < seen then return 0 end
	redis.call('HSET', KEYS[1], 'fence', ARGV[1])
	return 1`)

// write writes for the holder of a fence, at a store that takes whatever comes and at
// one that looks at fences, and tells whether that one let it through.
func write(t *testing.T, rdb *redis.Client, key string, fence int64) (fenced bool) {
	t.Helper()
	require.NoError(t, rdb.Set(context.Background(), key+":plain", fence, 0).Err())
	fenced, err := fencedWrite.Run(context.Background(), rdb, []string{key + ":fenced"}, fence).Bool()
	require.NoError(t, err)
	return fenced
}

// stored returns the fence of the last write at each store.
func stored(t *testing.T, rdb *redis.Client, key string) (plain, fenced int64) {
	t.Helper()
	plain, err := rdb.Get(t.Context(), key+":plain").Int64()
	require.NoError(t, err)
	fenced, err = rdb.HGet(t.Context(), key+":fenced", "fence").Int64()
	require.NoError(t, err)
	return plain, fenced
}

// freezeOften calls f 30 times while a process stands still that was frozen as it
// held a key, and the successor holds it. There are three such processes, since each
// round lasts a TTL.
func freezeOften(t *testing.T, f func(t *testing.T, rdb *redis.Client, p *frozenProcess, frozen frozenReport, successor *leasehold.Lock)) {
	t.Parallel()
	s := redistest.NewServer(t)
	for n := range 3 {
		t.Run(fmt.Sprint("process ", n+1), func(t *testing.T) {
			t.Parallel()
			rdb := s.Client(t)
			p := startFrozen(t, s, fmt.Sprint(key, ":", n))
			// No slow machine makes this one lose its lease.
			successor := newClient(t, rdb, leasehold.WithTTL(2*patience)).NewLock(p.key)
			for range 10 {
				frozen, lease := p.freezeHolder(t, rdb, successor)
				assert.NotEqual(t, frozen.Token, successor.Token())
				assert.Greater(t, successor.Fence(), frozen.Fence)

				f(t, rdb, p, frozen, successor)
				assert.NoError(t, lease.Err(), "the successor does not notice")
				assert.Equal(t, successor.Token(), get(t, rdb, p.key))
				assert.NoError(t, successor.Release())
			}
		})
	}
}

// A process that stands still beyond its deadline knows on waking that its lease is
// over, at its first look, whether or not a timer has fired by then. In many rounds,
// because a timer often has.
func TestG2_FrozenHolderSaysNo(t *testing.T) {
	freezeOften(t, func(t *testing.T, _ *redis.Client, p *frozenProcess, _ frozenReport, _ *leasehold.Lock) {
		woken := p.wake(t, orderLook)
		assert.False(t, woken.Alive, "the first look on waking")
		assert.True(t, woken.CauseLost, "the cause is ErrLost")
		assert.True(t, woken.Lost, "Release says %s", woken.ReleaseErr)
	})
}

// A process that is frozen between its last look at the context and its write comes
// too late, and cannot know it. A store that looks at fences refuses the write; one
// that does not takes it, over the successor's.
func TestG8_FenceStopsStaleWrites(t *testing.T) {
	freezeOften(t, func(t *testing.T, rdb *redis.Client, p *frozenProcess, frozen frozenReport, successor *leasehold.Lock) {
		require.True(t, write(t, rdb, p.key, successor.Fence()), "the successor's write is let through")

		woken := p.wake(t, orderWrite)
		assert.False(t, woken.Written, "the stale write is refused")
		assert.True(t, woken.Lost, "Release says %s", woken.ReleaseErr)
		plain, fenced := stored(t, rdb, p.key)
		assert.Equal(t, frozen.Fence, plain, "without a fence the stale write is let through")
		assert.Equal(t, successor.Fence(), fenced, "with one, what the successor wrote stays")
	})
}
