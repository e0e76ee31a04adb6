package leasehold

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goleasehold/leasehold/internal/model"
)

// The root module needs these and nothing else. What needs more is its own module.
func TestRootModuleNeedsOnly(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	direct := regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1)
	var names []string
	for _, match := range direct {
		names = append(names, match[1])
	}
	assert.ElementsMatch(t, []string{
		"github.com/redis/go-redis/v9", "github.com/google/uuid",
		"github.com/stretchr/testify", "github.com/alicebob/miniredis/v2",
	}, names)
}

// The library itself imports only go-redis and uuid beside the standard library.
func TestLibraryImports(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range parsed.Imports {
			path, _ := strconv.Unquote(spec.Path.Value)
			if strings.Contains(path, ".") {
				assert.Contains(t, []string{"github.com/redis/go-redis/v9", "github.com/google/uuid"}, path, file)
			}
		}
	}
}

// Calls go one way: lock, lease, scripts, door, go-redis. Only the door gives
// anything to go-redis, the lease knows no keys and no scripts, and what decides
// about time reads no clock but in now.
func TestCallsGoOneWay(t *testing.T) {
	for file, never := range map[string]string{
		"lease.go":    "redis acquisition door names Client script",
		"deadline.go": "redis acquisition door lease Lock Client context",
		"scripts.go":  "redis rdb lease Lock Client Now",
		"door.go":     "acquisition lease Lock Client",
		"lock.go":     "redis rdb command call",
		"line.go":     "redis rdb command call",
		"wait.go":     "redis rdb command call",
		"inbox.go":    "acquisition door lease line",
		"cleanup.go":  "redis rdb command call lease Client",
		"errors.go":   "acquisition door lease Lock Client",
		"options.go":  "redis acquisition door lease Lock Client",
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				assert.NotContains(t, strings.Fields(never), id.Name, file)
			}
			return true
		})
	}
}

// Only keys that a script was given are touched, so that it runs in a cluster and
// under an ACL.
func TestScriptsTouchOnlyTheirKeys(t *testing.T) {
	for _, s := range []*script{acquireScript, renewScript, releaseScript} {
		calls := regexp.MustCompile(`redis\.p?call\('(\w+)'(?:, ([^,)]+))?`).FindAllStringSubmatch(s.text.(string), -1)
		require.NotEmpty(t, calls)
		for _, call := range calls {
			assert.Contains(t, strings.Fields(s.needs), strings.ToLower(call[1]), "%s calls what it does not say it needs", s.name)
			if call[1] != "TIME" && call[1] != "PUBLISH" {
				assert.Regexp(t, `^(KEYS\[[123]\]|key|queue)$`, call[2], s.name)
			}
		}
	}
}

// Each step of the model is named where the code does it, but for those that the
// network, time and death do; and nothing else is.
func TestStepsAreNamed(t *testing.T) {
	var text strings.Builder
	for _, pattern := range []string{"*.go", "lua/*.lua"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				source, err := os.ReadFile(file)
				require.NoError(t, err)
				text.Write(source)
			}
		}
	}
	named := map[string]bool{}
	for _, brackets := range regexp.MustCompile(`\[(?:model: )?((?:\w+\.\w+(?:,[\s/]+)?)+)\]`).FindAllStringSubmatch(text.String(), -1) {
		for _, step := range regexp.MustCompile(`\w+\.\w+`).FindAllString(brackets[1], -1) {
			named[step] = true
		}
	}
	never := []model.Step{model.CommandLeftBehind, model.CommandLost, model.CommandCopied, model.WakeUpLost,
		model.LineDie, model.KeyExpire, model.GrantExpire}
	for _, step := range model.Steps() {
		if !slices.Contains(never, step) {
			assert.True(t, named[string(step)], "no code says that it does %s", step)
			delete(named, string(step))
		}
	}
	for step := range named {
		assert.Fail(t, "no step of the model", step)
	}
}

// A file is one that can be read in one sitting, and a function fits a screen.
func TestFilesAreShort(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.HasSuffix(file, "_test.go") {
			assert.LessOrEqual(t, strings.Count(string(text), "\n"), 420, file)
		}
	}
}
