//go:build netns

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

// shell returns a way to write a file by commands: from $new, which has the text, to
// $f, in a directory of its own, $work. $base is the name of the file, $dir its
// directory, $n the number of the version.
func shell(script string) func(*site, string) error {
	return func(s *site, text string) error {
		ctx, cancel := pace.Context(netnstest.CommandTimeout)
		defer cancel()
		work, err := os.MkdirTemp(s.aside, "sh-")
		if err != nil {
			return err
		}
		fresh := filepath.Join(work, "new")
		if err := write(fresh, text); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "sh", "-ec", script)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "f="+s.file(), "new="+fresh, "base="+s.name, "dir="+s.dir,
			"n="+strconv.Itoa(s.run), "aside="+s.aside, "work="+work, "pid="+strconv.Itoa(s.env.daemon.Pid()))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	}
}

// commandWays are those of commands that every Debian has, or that the tests need anyway.
var commandWays = []way{
	{"cat >", nil, shell(`cat $new >$f`)},
	{"cat <>", nil, shell(`cat $new 1<>$f; truncate -s $(stat -c %s $new) $f`)},
	{"truncate, cat <>", nil, shell(`truncate -s 0 $f; cat $new 1<>$f`)},
	{"line by line >>", nil, shell(`: >$f; while IFS= read -r line; do echo "$line" >>$f; done <$new`)},
	{"kept open", nil, shell(`exec 3>$f; cat $new >&3; sleep 0.4`)},
	{"tee", nil, shell(`tee $f <$new >/dev/null`)},
	{"tee -a", nil, shell(`truncate -s 0 $f; tee -a $f <$new >/dev/null`)},
	{"flock", nil, shell(`flock $f -c "cat $new >$f"`)},
	{"copytruncate", nil, shell(`cp $f $f.bak; : >$f; cat $new >>$f`)},
	{"cp", nil, shell(`cp $new $f`)},
	{"cp to the target of a symlink", (*site).linkToTarget, shell(`cp $new $f`)},
	{"cp -f of a read-only file", nil, shell(`chmod 444 $new; cp -pf $new $f`)},
	{"cp -p, older", nil, shell(`touch -d @$((1000000000 - n)) $new; cp -p $new $f`)},
	{"cp --remove-destination", nil, shell(`cp --remove-destination $new $f`)},
	{"cp --backup", nil, shell(`cp --backup=simple $new $f`)},
	{"cp --backup=numbered", nil, shell(`cp --backup=numbered $new $f`)},
	{"cp -l", nil, shell(`cp -fl $new $f`)},
	{"cp -s", nil, shell(`cp -fs $new $f`)},
	{"mv", nil, shell(`mv -f $new $f`)},
	{"mv --backup", nil, shell(`mv --backup=numbered $new $f`)},
	{"mv from another file system", nil, shell(`rm $f; cp -p $new $f`)}, // what it does then
	{"moved aside, copied back, edited", nil, shell(`mv $f $f.orig; cp -p $f.orig $f; cat $new >$f; rm $f.orig`)},
	{"mktemp and mv", nil, shell(`t=$(mktemp $f.XXXXXX); cat $new >$t; chmod 644 $t; mv $t $f`)},
	{"install", nil, shell(`install -m 644 $new $f`)},
	{"install -C", nil, shell(`install -C -m 600 $new $f`)},
	{"install -b", nil, shell(`install -b -S .bak $new $f`)},
	{"dd", nil, shell(`dd if=$new of=$f bs=64 status=none`)},
	{"dd conv=notrunc", padded((*site).plain), padded(shell(`dd if=$new of=$f bs=512 conv=notrunc status=none`))},
	{"sed -i", nil, shell(`sed -n -i -e "1r $new" $f`)},
	{"sed -i.bak", nil, shell(`sed -n -i.bak -e "1r $new" $f`)},
	{"sed -i --follow-symlinks", (*site).linkToTarget, shell(`sed -n -i --follow-symlinks -e "1r $new" $f`)},
	{"perl -i", nil, shell(`perl -i -ne 'next if $. > 1; open N, "<", $ENV{new}; print while <N>' $f`)},
	{"perl -i.bak", nil, shell(`perl -i.bak -ne 'next if $. > 1; open N, "<", $ENV{new}; print while <N>' $f`)},
	{"perl +<", nil, shell(`perl -e 'open F, "+<", $ENV{f}; open N, "<", $ENV{new}; print F <N>; truncate F, tell F' `)},
	{"awk >", nil, shell(`awk -v f=$f '{print >f}' $new`)},
	{"awk and mv", nil, shell(`awk '{print}' $new >$f.tmp && mv -f $f.tmp $f`)},
	{"sort -o", nil, shell(`sort -s -k 999 -o $f $new`)},
	{"ln -f", nil, shell(`ln -f $new $f`)},
	{"ln -sfn", nil, shell(`ln -sfn $new $f`)},
	{"update-alternatives", nil, shell(`mkdir -p $aside/etc $aside/var; rm -f $aside/log
		update-alternatives --quiet --altdir $aside/etc --admindir $aside/var --log $aside/log --force --install $f $base $new $n`)},
	{"tar x", nil, shell(`mv $new $base; tar -cf a.tar $base; tar -C $dir -xf a.tar`)},
	{"tar x --overwrite", nil, shell(`mv $new $base; tar -cf a.tar $base; tar -C $dir -xf a.tar --overwrite`)},
	{"tar x --unlink-first", nil, shell(`mv $new $base; tar -cf a.tar $base; tar -C $dir -xf a.tar --unlink-first`)},
	{"ar x", nil, shell(`mv $new $base; ar rc a.ar $base; cd $dir; ar xo $OLDPWD/a.ar`)},
	{"unsquashfs -f", nil, shell(`mkdir d; mv $new d/$base; mksquashfs d a.sq -quiet -no-progress >/dev/null; unsquashfs -q -n -f -d $dir a.sq >/dev/null`)},
	{"gunzip -f", nil, shell(`gzip -c $new >$f.gz; gunzip -f $f.gz`)},
	{"git apply", nil, shell(`diff -u --label a/$base --label b/$base $f $new >p || true; git -C $dir apply $PWD/p`)},
	{"git merge-file", nil, shell(`cp $f old; git merge-file -q $f old $new`)},
	{"chmod 000 and back", nil, shell(`chmod 000 $f; cat $new >$f; chmod 644 $f`)},
	{"touched in the future", nil, shell(`cat $new >$f; touch -d 2038-01-01 $f`)},
	{"broken first", nil, shell(`echo '{"services": [' >$f; cat $new >$f`)},
}

// padded has all versions of a file have the same size.
func padded(write func(*site, string) error) func(*site, string) error {
	return func(s *site, text string) error {
		return write(s, fmt.Sprintf("%-*s\n", paddedSize-1, text))
	}
}

// paddedSize is that of padded files: a multiple of the blocks of all disks.
const paddedSize = 4096
