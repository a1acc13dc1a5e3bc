// SPDX-License-Identifier: Apache-2.0
#include "tools/library.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

#include "tools/elf_file.h"
#include "tools/text_output.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

TEST(EnvironmentTest, BehavesAsGetenvAndSetenv) {
    const char* entries[] = {"A=1", "AB=2", "A=3", "B=x=y", "C=", nullptr};
    Environment environment(entries);
    EXPECT_EQ(environment.get("A"), "1");
    EXPECT_EQ(environment.get("B"), "x=y");
    EXPECT_EQ(environment.get("C"), "");
    EXPECT_EQ(environment.get("D"), std::nullopt);
    EXPECT_EQ(environment.get("AB"), "2");
    environment.set("A", "4");
    environment.set("D", "new");
    std::vector<std::string> all;
    for (const char* entry : environment.entries()) {
        all.emplace_back(entry);
    }
    EXPECT_THAT(all, testing::ElementsAre("A=4", "AB=2", "B=x=y", "C=", "D=new"));
    EXPECT_EQ(environment.for_exec().back(), nullptr);
}

TEST(AddPreload, PutsItFirstAndKeepsTheOthers) {
    const char* entries[] = {"LD_PRELOAD=/a/libx.so /b/liby.so", nullptr};
    Environment environment(entries);
    EXPECT_EQ(add_preload(environment, "/d/libnccl-net-deft.so"), "");
    EXPECT_EQ(environment.get("LD_PRELOAD"), "/d/libnccl-net-deft.so:/a/libx.so /b/liby.so");
    EXPECT_EQ(add_preload(environment, "/d/libnccl-net-deft.so"), "");
    EXPECT_EQ(environment.get("LD_PRELOAD"), "/d/libnccl-net-deft.so:/a/libx.so /b/liby.so")
        << "once is enough";
    EXPECT_EQ(environment.get("LD_LIBRARY_PATH"), std::nullopt);
}

TEST(AddPreload, OnOtherHostsAPathWithABlankGoesByName) {
    const char* entries[] = {"LD_LIBRARY_PATH=/x", nullptr};
    Environment environment(entries);
    EXPECT_EQ(add_preload(environment, "/my files/libnccl-net-deft.so", false), "");
    EXPECT_EQ(environment.get("LD_PRELOAD"), "libnccl-net-deft.so");
    EXPECT_EQ(environment.get("LD_LIBRARY_PATH"), "/my files:/x");
}

// A job may set LD_LIBRARY_PATH anew, so that is not what the library is found by.
TEST(AddPreload, APathThatTheLoaderWouldSplitGoesByALink) {
    for (const char* path :
         {"/a:b/libnccl-net-deft.so", "/$LIB/libnccl-net-deft.so", "/my files/libnccl-net-deft.so",
          "/my files/libdeft-preload.so", "/a:b/libdeft-preload.so", "/a/my library.so"}) {
        const char* entries[] = {"LD_LIBRARY_PATH=/x", nullptr};
        Environment environment(entries);
        ASSERT_EQ(add_preload(environment, path, true), "");
        EXPECT_EQ(environment.get("LD_LIBRARY_PATH"), "/x");
        const std::string link = environment.get("LD_PRELOAD").value_or("");
        EXPECT_EQ(link.find_first_of(" :;$"), link.npos);
        EXPECT_EQ(fs::read_symlink(link), path);
        const fs::path name = fs::path(path).filename();
        EXPECT_EQ(fs::path(link).filename(), name == "my library.so" ? "libnccl-net-deft.so" : name)
            << "the guest looks for the library next to itself";
        fs::remove(link);
        fs::remove(fs::path(link).parent_path());
    }
}

class LibraryTest : public testing::Test {
protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "deft-library-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { fs::remove_all(folder_); }

    std::string file(const std::string& name, const std::string& text) {
        const fs::path path = folder_ / name;
        fs::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << text;
        return path.string();
    }
    fs::path folder_;
};

TEST_F(LibraryTest, WhatCannotBePreloadedIsRefused) {
    EXPECT_THAT(find_library((folder_ / "absent").string()).error,
                AllOf(HasSubstr("--library"), HasSubstr("absent"), HasSubstr("No such file")));
    EXPECT_THAT(find_library(folder_.string()).error, HasSubstr("not a regular file"));
    EXPECT_THAT(find_library(file("text", "hello")).error, HasSubstr("not a shared library"));
    EXPECT_THAT(find_library(file("empty", "")).error, HasSubstr("not a shared library"));
    std::string other(
        "\x7f"
        "ELF\x01\x01\x01",
        7);
    other.resize(64);
    EXPECT_THAT(find_library(file("elf32", other)).error, HasSubstr("another machine"));
}

TEST_F(LibraryTest, IsFoundBesideAnInstalledCommand) {
    const std::string executable = (folder_ / "bin/deft").string();
    EXPECT_THAT(find_library("", executable).error,
                AllOf(HasSubstr("libnccl-net-deft.so"), HasSubstr("--library")));
    fs::create_directories(folder_ / "bin");
    fs::create_directories(folder_ / "lib64");
    Dl_info any_library{};
    ASSERT_NE(::dladdr(::dlsym(RTLD_DEFAULT, "_ZSt9terminatev"), &any_library), 0);
    fs::copy(fs::canonical(any_library.dli_fname), folder_ / "lib64/libnccl-net-deft.so");
    const Library found = find_library("", executable);
    EXPECT_EQ(found.error, "");
    EXPECT_EQ(found.path, (folder_ / "lib64/libnccl-net-deft.so").string());
    // A program is none, position-independent or not.
    fs::copy("/proc/self/exe", folder_ / "program");
    EXPECT_THAT(find_library((folder_ / "program").string()).error,
                HasSubstr("not a shared library"));
    file("lib64/libnccl-net-deft.so", "truncated");
    EXPECT_THAT(find_library("", executable).error,
                AllOf(HasSubstr("lib64/libnccl-net-deft.so"), HasSubstr("reinstall")));
}

TEST_F(LibraryTest, RecognisesScriptsAndPrograms) {
    EXPECT_EQ(read_elf(file("script", "#! /usr/bin/env python3\n")).interpreter, "/usr/bin/env");
    EXPECT_EQ(read_elf(file("short", "#!")).interpreter, "");
    EXPECT_EQ(read_elf(file("tiny", "x")).kind, ElfFile::Kind::Other);
    EXPECT_EQ(read_elf("/nonexistent").kind, ElfFile::Kind::Unreadable);
    const ElfFile self = read_elf("/proc/self/exe");
    EXPECT_EQ(self.kind, ElfFile::Kind::Elf);
    EXPECT_TRUE(self.this_machine);
    EXPECT_TRUE(self.needs_loader);
}

TEST_F(LibraryTest, LooksCommandsUpAsTheShellDoes) {
    const std::string tool = file("bin/tool", "#!/bin/sh\n");
    const std::string path = "/nonexistent:" + (folder_ / "bin").string();
    EXPECT_EQ(find_in_path("tool", path), "") << "not executable";
    fs::permissions(tool, fs::perms::owner_all);
    EXPECT_EQ(find_in_path("tool", path), tool);
    EXPECT_EQ(find_in_path("./tool", path), "./tool");
    EXPECT_EQ(find_in_path("bin", folder_.string()), "") << "a folder";
}

TEST(TextOutput, QuotesForTheShell) {
    EXPECT_EQ(shell_quoted("plain-1.0/x=y"), "plain-1.0/x=y");
    EXPECT_EQ(shell_quoted(""), "''");
    EXPECT_EQ(shell_quoted("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(TextOutput, MakesControlCharactersVisible) {
    EXPECT_EQ(printable("a\tb\n\x1b[0m\x7f"), "a\\x09b\\x0a\\x1b[0m\\x7f");
    EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x80"),
              "gr\xc3\xbc\xc3\x9f \xf0\x9f\x9a\x80");
    EXPECT_EQ(printable("\xc3"), "\\xc3");
    EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80\xc2\x9b"), "\\xc0\\xaf\\xed\\xa0\\x80\\xc2\\x9b");
}

}  // namespace
}  // namespace deft::tools
