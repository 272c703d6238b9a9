//go:build netns

package lab

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// gitWays are those of a directory that is a work tree.
var gitWays = []way{
	{"git", (*site).firstCommit, (*site).commit},
	{"git checkout of 300 renames", (*site).firstRenames, (*site).checkoutRenames},
}

// gitHome keeps git from what is set on this host.
const gitHome = `export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git config --global advice.detachedHead false; git config --global safe.directory '*'; git config --global init.defaultBranch main
cd $dir
`

// gitCommits are how a commit upstream comes into the work tree, in turn. Each is one commit ahead of it.
var gitCommits = []string{
	`git pull -q --ff-only $up main`,
	`git fetch -q $up main; git reset -q --hard FETCH_HEAD`,
	`git fetch -q $up main; git checkout -q FETCH_HEAD; git branch -qf main; git checkout -q main`,
	`git fetch -q $up main; git merge -q --no-ff -m merge FETCH_HEAD; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; git cherry-pick FETCH_HEAD >/dev/null; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; git restore --source=FETCH_HEAD .; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; git show FETCH_HEAD | git apply; git reset -q FETCH_HEAD`,
	`git -C $up format-patch -q -1 --stdout | git am -q; git fetch -q $up main; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; git commit -q --allow-empty -m local; git rebase -q FETCH_HEAD; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; cp $new $f; git stash -q; git stash pop -q; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; git rm -q $base; git checkout -q FETCH_HEAD $base; git reset -q FETCH_HEAD`,
	`git fetch -q $up main; git merge -q --ff-only FETCH_HEAD; git revert --no-edit HEAD >/dev/null; git revert --no-edit HEAD >/dev/null; git reset -q FETCH_HEAD`,
}

// firstCommit makes the directory a work tree, and a clone of it aside.
func (s *site) firstCommit(text string) error {
	s.runs = max(s.runs, len(gitCommits))
	return errors.Join(s.plain(text), shell(gitHome+`git init -q; git add .; git commit -q -m first; git clone -q $dir $aside/up`)(s, text))
}

// commit has a new version committed aside, and brought in.
func (s *site) commit(text string) error {
	script := gitHome + "up=$aside/up; cp $new $up/$base; git -C $up commit -q -a -m $n\n" + gitCommits[s.run%len(gitCommits)]
	return shell(script)(s, text)
}

const (
	renamed   = 300  // files, by a checkout
	otherPort = 1000 // of the first of their services
)

// firstRenames commits many files of one service each under two sets of names.
func (s *site) firstRenames(text string) error {
	err := s.plain(text)
	for i := range renamed {
		service, e := File(s.other(i))
		s.others = append(s.others, check{to: s.env.vip(1), port: otherPort + uint16(i)})
		err = errors.Join(err, e, write(filepath.Join(s.dir, fmt.Sprintf("a-%d.json", i)), service+"\n"))
	}
	return errors.Join(err, shell(gitHome+`git init -q; git add .; git commit -q -m a
		git branch a; git checkout -q -b b; for i in a-*.json; do mv $i b-${i#a-}; done; git add -A; git commit -q -m b; git checkout -q a`)(s, text))
}

// other returns the i-th of many services.
func (s *site) other(i int) Service {
	other := s.service(fmt.Sprint("-other-", i), s.env.vip(1), s.env.Local[0])
	for k := range other.Ports {
		other.Ports[k].Port = otherPort + uint16(i)
	}
	return other
}

// checkoutRenames changes one file in the set of names that is not there, and checks that out.
func (s *site) checkoutRenames(text string) error {
	names := []string{"a", "b"}
	return shell(gitHome+strings.ReplaceAll(`
		blob=$(git hash-object -w $new)
		export GIT_INDEX_FILE=$PWD/.git/next
		git read-tree NEXT; git update-index --cacheinfo 100644,$blob,$base
		git branch -qf NEXT $(git commit-tree -p NEXT -m $n $(git write-tree))
		unset GIT_INDEX_FILE
		git checkout -q NEXT`, "NEXT", names[s.run%2]))(s, text)
}
