// Package repocheck has tests of the repository as a whole: which package may import which, that the documentation says what the
// code does, and that the commands of README work. They run in the root of the repository.
package repocheck

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
