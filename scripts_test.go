package leasehold

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slotPart is what Redis Cluster hashes of a key, written after the specification
// and not after our own code.
func slotPart(key string) string {
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return key
	}
	end := strings.IndexByte(key[open+1:], '}')
	if end <= 0 {
		return key
	}
	return key[open+1 : open+1+end]
}

func TestAuxiliaryKeys(t *testing.T) {
	for key, want := range map[string]string{
		"orders:42":     "{orders:42}:leasehold:record:",
		"{orders}:42":   "{orders}:42:leasehold:record",
		"a{b":           "{a{b}:leasehold:record:",
		"a{b}c{d}":      "a{b}c{d}:leasehold:record",
		"\x00 \n\xff":   "{\x00 \n\xff}:leasehold:record:",
		"x:leasehold:":  "{x:leasehold:}:leasehold:record:",
		"{a}:{":         "{a}:{:leasehold:record",
		"{{}:leasehold": "{{}:leasehold:leasehold:record",
	} {
		assert.Empty(t, checkKey("", key), "%q", key)
		assert.Equal(t, want, aux(key, "record"))
		assert.Equal(t, slotPart(key), slotPart(want), "%q", key)
	}
}

func TestKeysRefused(t *testing.T) {
	for key, why := range map[string]string{
		"":                            "the key is empty",
		"}":                           "contains } outside a hash tag",
		"a}b{c}":                      "",
		"{}x":                         "contains } outside a hash tag",
		"a{}b{c}":                     "contains } outside a hash tag",
		"}{":                          "contains } outside a hash tag",
		"{orders}:leasehold:queue:":   "ends like an auxiliary key",
		"{o}:1:leasehold:record":      "ends like an auxiliary key",
		"x:leasehold:record":          "ends like an auxiliary key",
		strings.Repeat("k", maxKey):   "",
		strings.Repeat("k", maxKey+1): "longer than 65536 bytes",
	} {
		faults := strings.Join(checkKey("", key), "; ")
		if why == "" {
			assert.Empty(t, faults)
			continue
		}
		assert.Contains(t, faults, why)
		_, err := New(nowhere(t)).NewLock(key).TryAcquire(t.Context())
		require.ErrorIs(t, err, ErrInvalid)
		assert.Contains(t, err.Error(), why)
		assert.Less(t, len(err.Error()), 500, "a long key is cut in an error's text")
	}
}

func TestPrefixIsPartOfTheKeyThatIsChecked(t *testing.T) {
	assert.Empty(t, checkKey("{app}:", "a}b"), "the prefix has the hash tag")
	assert.NotEmpty(t, checkKey("p:", ""), "a prefix does not make an empty key one")
	assert.NotEmpty(t, checkKey("x:leasehold:", "record"))
}

// Of two accepted keys, no auxiliary key of one is the other, or an auxiliary key
// of the other; and each falls in its key's slot.
func FuzzAuxiliaryKeys(f *testing.F) {
	for _, s := range []string{"a", "{a}", "a{b}c", "{", "a{b", "{a}:leasehold:record", "{a}:leasehold:record:", ":leasehold:queue", "{{a}:x"} {
		f.Add(s, "{"+s+"}")
		f.Add(s, aux(s, "record"))
		f.Add(s, s+":leasehold:")
	}
	f.Fuzz(func(t *testing.T, one, other string) {
		if checkKey("", one) != nil {
			return
		}
		taken := map[string]string{one: "the key"}
		for _, name := range auxiliaryNames {
			key := aux(one, name)
			if slotPart(key) != slotPart(one) {
				t.Fatalf("%q is not in the slot of %q", key, one)
			}
			if was, twice := taken[key]; twice {
				t.Fatalf("%q is %s of %q too", key, was, one)
			}
			if checkKey("", key) == nil {
				t.Fatalf("%q can be locked", key)
			}
			taken[key] = name
		}
		if one == other || checkKey("", other) != nil {
			return
		}
		for _, key := range []string{other, aux(other, "queue"), aux(other, "record")} {
			if was, both := taken[key]; both {
				t.Fatalf("%q of %q is %s of %q too", key, other, was, one)
			}
		}
	})
}
